// Shows /api/v1/snapshot, again and again. Whatever a program calls itself goes into the page as text only.
"use strict";

const EVERY = 2000;
let before = null;

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function scaled(value, units, step) {
  if (!Number.isFinite(value)) return "-";
  let at = 0;
  while (value >= step && at + 1 < units.length) {
    value /= step;
    at += 1;
  }
  const digits = value >= 100 || (at === 0 && Number.isInteger(value)) ? 0 : value >= 10 ? 1 : 2;
  return value.toFixed(digits) + units[at];
}

const count = (value) => scaled(value, ["", " k", " M", " G", " T"], 1000);
const bytes = (value) => scaled(value, [" B", " KiB", " MiB", " GiB", " TiB"], 1024);
const nanos = (value) => scaled(value, [" ns", " us", " ms", " s"], 1000);
const of = (row, name) => row[name] || 0;
const mean = (row, sum, over, show) => (of(row, over) > 0 ? show(of(row, sum) / of(row, over)) : "-");

function rate(row, then, name, seconds) {
  return then && seconds > 0 ? Math.max(0, of(row, name) - of(then, name)) / seconds : NaN;
}

function joules(row) {
  const found = [];
  for (const worth of ["measured", "derived", "modelled"]) {
    if (of(row, "joules_" + worth) > 0) {
      found.push(scaled(row["joules_" + worth], [" J", " kJ", " MJ"], 1000) + " " + worth);
    }
  }
  return found.join(", ") || "-";
}

function table(program, then, seconds) {
  const made = element("table");
  const names = [
    "kind", "engine", "requests", "per second", "bytes", "bytes per second", "mean time", "held", "batch", "refused",
    "failed", "joules",
  ];
  const head = element("tr");
  for (const name of names) head.append(element("th", name));
  made.append(head);
  for (const row of program.cells) {
    const old = then && then.cells.find((one) => one.engine === row.engine && one.kind === row.kind);
    const line = element("tr");
    const cells = [
      row.kind,
      row.engine,
      count(of(row, "requests")),
      count(rate(row, old, "requests", seconds)),
      bytes(of(row, "bytes")),
      bytes(rate(row, old, "bytes", seconds)),
      mean(row, "timed_ns", "timed", nanos),
      mean(row, "held_ns", "requests", nanos),
      mean(row, "batch_sum", "batch_count", (value) => value.toFixed(1)),
      count(of(row, "refused")),
      count(of(row, "errors")),
      joules(row),
    ];
    for (const text of cells) line.append(element("td", text));
    made.append(line);
  }
  return made;
}

function about(program) {
  const running = program.running === 1 ? "1 process runs" : program.running + " processes run";
  let text = "user " + program.uid + "; " + running;
  if (program.ended > 0) text += "; " + program.ended + " ended";
  const flight = program.engines.reduce((sum, engine) => sum + of(engine, "in_flight"), 0);
  if (flight > 0) text += "; " + flight + " in flight";
  return text;
}

function section(program, then, seconds) {
  const made = element("section");
  made.append(element("h2", program.program), element("p", about(program)));
  if (program.running > 0 && program.requests === 0) {
    made.append(element("p", "It did nothing with Wattlock yet.", "cross"));
  }
  for (const fallback of program.fallbacks) {
    made.append(element("p", fallback.engine + ": " + fallback.count + " fallbacks, " + fallback.reason, "cross"));
  }
  if (program.cells.length > 0) made.append(table(program, then, seconds));
  return made;
}

function show(report, now) {
  const verdict = document.getElementById("verdict");
  verdict.textContent = report.verdict.line;
  verdict.className = report.verdict.good ? "verdict" : "verdict alarm";
  const seconds = before ? (now - before.now) / 1000 : 0;
  const sections = report.programs.map((program) => {
    const same = (one) => one.uid === program.uid && one.program === program.program;
    return section(program, before ? before.report.programs.find(same) : undefined, seconds);
  });
  document.getElementById("programs").replaceChildren(...sections);
  document.getElementById("state").textContent = "Wattlock " + report.version + ", " + new Date(now).toLocaleTimeString();
  before = { report, now };
}

async function refresh() {
  try {
    const answer = await fetch("/api/v1/snapshot", { cache: "no-store" });
    if (!answer.ok) throw new Error(String(answer.status));
    show(await answer.json(), Date.now());
  } catch (error) {
    document.getElementById("state").textContent = "The exporter does not answer (" + error.message + ").";
    document.getElementById("verdict").className = "verdict alarm";
  }
  setTimeout(refresh, EVERY);
}

refresh();
