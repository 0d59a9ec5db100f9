#!/usr/bin/env python3
"""Writes docs/measurements/performance.md, the tables that it counts (docs/measurements/tables), README.md's table
between two marks and its picture (docs/measurements/gains.svg), from docs/measurements/*.json.

    scripts/measure/performance.py             write all of them
    scripts/measure/performance.py --check     write nothing; exit code 1, and the difference, where they are not what the data gives
    --root DIR                         another tree than this one

Every figure on these pages comes from a file of data, so a page cannot say more than was measured. Of several runs that measured
the same on the same kind of CPU, the newest counts; one that was carried over counts less than another of the same day.
docs/measurements/README.md describes the files.
"""
import argparse
import datetime
import difflib
import html
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
BEGIN, END = "<!-- performance:begin -->", "<!-- performance:end -->"
GAINS_BEGIN, GAINS_END = "<!-- gains:begin -->", "<!-- gains:end -->"
CLASSES = ("avx512-intel", "avx512-amd", "avx2", "none")
# Zen 4 does a 512-bit operation in two halves: its own column, or its readers would be promised Zen 5's figures.
COLUMNS = {"intel": "AVX-512 of Intel", "amd": "AVX-512 of AMD (Zen 5)", "zen4": "AVX-512 of AMD (Zen 4)", "avx2": "AVX2",
           "none": "no AVX2"}
# What tells one row of a bench from another of the same name.
COORDINATES = ("batch", "bytes", "connections", "content", "jobs", "kind", "policy", "requests", "velocity")


class Wrong(Exception):
    """The data cannot be what it says."""


# Data


def validated(path):
    """The run that a file holds."""
    def need(holds, what):
        if not holds:
            raise Wrong(f"{path.name}: {what}")

    try:
        run = json.loads(path.read_text())
    except ValueError as error:
        raise Wrong(f"{path.name}: {error}") from None
    need(isinstance(run, dict) and run.get("schema") == 1, "not schema 1")
    need(isinstance(run.get("command"), str) and run["command"], "no command")
    need(re.fullmatch(r"[0-9a-f]{7,40}\+?", str(run.get("commit"))), "no commit")
    try:
        datetime.date.fromisoformat(run.get("date", ""))
    except (TypeError, ValueError):
        raise Wrong(f"{path.name}: no date") from None
    cpu = run.get("cpu")
    need(isinstance(cpu, dict) and cpu.get("class") in CLASSES, f"no CPU class, or one that is none of {', '.join(CLASSES)}")
    need(isinstance(run.get("rows"), list) and run["rows"], "no rows")
    seen = set()
    for row in run["rows"]:
        where = f"row {row.get('row')} {row.get('params')}"
        need(all(isinstance(row.get(key), str) and row[key] for key in ("bench", "row")), f"{where}: no bench or no name")
        need(isinstance(row.get("params"), dict), f"{where}: no params")
        need(row.get("by") in ("cpu", "time"), f"{where}: by neither processor time nor time")
        for key in ("ours", "theirs", "ratio", "low", "high"):
            value = row.get(key)
            number = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf")
            need(value is None or number, f"{where}: {key} is no figure")
        between = [row[key] for key in ("low", "ratio", "high") if row.get(key) is not None]
        need(between == sorted(between), f"{where}: the ratio is not between low and high")
        need((row.get("low") is None) == (row.get("high") is None), f"{where}: one end of the spread is missing")
        identity = json.dumps([row["bench"], row["row"], row["params"]], sort_keys=True)
        need(identity not in seen, f"{where}: twice")
        seen.add(identity)
        need(not against_openssl(row) or version(run, row), f"{where}: no version of OpenSSL")
    run["file"] = path.name
    return run


def load(folder):
    """All runs, oldest first."""
    runs = [validated(path) for path in sorted(Path(folder).glob("*.json")) if path.name != "fresh.json"]
    if not runs:
        raise Wrong("no data")
    return sorted(runs, key=lambda run: (run["date"], "carried" not in run, Path(run["file"]).stem))


def against_openssl(row):
    return "OpenSSL" in (row.get("against") or "") and ratio_known(row)


def ratio_known(row):
    return row.get("ratio") is not None or row.get("low") is not None


def version(run, row):
    """OpenSSL's version of a row, as (3, 0)."""
    text = re.search(r"OpenSSL (\d+)\.(\d+)", row.get("against") or "") or \
        re.match(r"(\d+)\.(\d+)", (run.get("peers") or {}).get("openssl") or "")
    return (int(text[1]), int(text[2])) if text else None


def column(run, row):
    """The column of a row: the kind of CPU and the line of OpenSSL, which got faster itself with 3.5."""
    name, kind = run["cpu"].get("name") or "", run["cpu"]["class"]
    cpu = {"avx512-intel": "intel", "avx512-amd": "zen4" if name == "Zen 4" else "amd"}.get(kind, kind)
    line = ("3.5" if version(run, row) >= (3, 5) else "3.0") if against_openssl(row) else ""
    return cpu, line


def identity(row):
    """What is measured, whoever did it: bench, name and coordinates."""
    name, where = row["row"], {key: row["params"][key] for key in COORDINATES if key in row["params"]}
    if row["bench"] == "https" and name.endswith(f"-{where.get('connections')}"):
        name = name.rsplit("-", 1)[0]
    if row["bench"] == "lanes" and name in KINDS:
        where["batch"] = 8
    if row["bench"] in ("files", "fs") or (row["bench"] == "compress" and "content" not in where):
        where.pop("bytes", None)  # of large files: the run says how many
    return row["bench"], name, tuple(sorted(where.items()))


def newest(runs):
    """{what is measured: {column: (run, row)}}, the newest of each; of one run's engines the fastest."""
    found = {}
    for run in runs:
        for row in run["rows"]:
            if not ratio_known(row) and (row.get("ours") is None or row["bench"] == "files"):
                continue  # nothing to show; of files, what the peers took
            cell = found.setdefault(identity(row), {})
            old = cell.get(column(run, row))
            if not (old and old[0] is run and (old[1].get("ratio") or 0) >= (row.get("ratio") or 0)):
                cell[column(run, row)] = (run, row)
    return found


# Cells


def figure(value):
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def amount(value, unit):
    if unit == "ratio":
        return f"{value:.3f}"
    for name, step in (("s", 1), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)):
        if unit == "s" and value >= step:
            return f"{value / step:.3g} {name}"
    for name, step in (("GB/s", 1e9), ("MB/s", 1e6)):
        if unit == "B/s" and value >= step:
            return f"{value / step:.2f} {name}"
    if value >= 1e6:
        return f"{value / 1e6:,.0f} million {unit}"
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:,.0f} {unit}"


def median(row):
    """A row's ratio; none if the interval contains 1. Older runs kept no ratio where the spread was larger than the gain:
    their figures are of the round with the median ratio, too."""
    low, high = row.get("low"), row.get("high")
    if row.get("ratio") is not None or low is None or low <= 1 <= high or not (row.get("ours") and row.get("theirs")):
        return row.get("ratio")
    ratios = (row["ours"] / row["theirs"], row["theirs"] / row["ours"])
    return next((ratio for ratio in ratios if low <= ratio <= high), None)


def shown(row, spread=True):
    """A row's figure; a loss in bold."""
    if not ratio_known(row):
        return amount(row["ours"], row.get("unit") or "")
    ends = f"{figure(row['low'])} to {figure(row['high'])}" if row.get("low") is not None else ""
    middle = median(row)
    if middle is None:
        text, loss = ends, round(row["high"], 2) < 1
    else:
        loss = round(middle, 2) < 1
        text = figure(middle) + (f" ({ends})" if ends and spread else "")
    return f"**{text}**" if loss else text


def shown_folder(row):
    """Time against the peer, then processor time against it, then time against the layer without cryptography."""
    cpu, plain = ((row.get("detail") or {}).get(key) or {} for key in ("cpu", "plain"))
    ratios = [shown(row, spread=False)] + [shown(of, spread=False) if of else "-" for of in (cpu, plain)]
    return " / ".join(ratios)


def size(count):
    for unit, step in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= step and count % step == 0:
            return f"{count // step} {unit}"
    return f"{count} B"


def label(row, where):
    texts = {"bytes": lambda v: size(v), "content": str, "policy": str, "velocity": str, "jobs": lambda v: f"{v} job{'s' * (v != 1)}", "kind": str,
             "requests": lambda v: f"{v} requests",
             "connections": lambda v: f"{v} connection{'s' * (v != 1)}", "batch": lambda v: f"{v} at a time"}
    return ", ".join([row] + [texts[key](value) for key, value in where])


# docs/measurements/performance.md and tables/README.md

HANDSHAKE = {"tls12": "TLS 1.2", "tls13": "TLS 1.3", "rsa2048": "RSA-2048", "rsa3072": "RSA-3072", "rsa4096": "RSA-4096",
             "ecdsa256": "ECDSA P-256", "ecdsa384": "ECDSA P-384", "x25519": "X25519", "p256": "P-256", "p384": "P-384",
             "x25519mlkem768": "X25519MLKEM768", "both": "both certificates", "resumed": "resumed", "p99": "99th percentile of its time"}
FILES = {
    "seal-file": "sealing, file to file, against `cp`", "open-file": "opening, file to file, against `cp`",
    "seal": "sealing to /dev/null, against `age`", "open": "opening to /dev/null, against `age -d`",
    "seal-age": "sealing in age's format to /dev/null, against `age`", "open-age": "opening age's format to /dev/null, against `age -d`",
    "stream-seal": "sealing a stream from a pipe, against `age`", "stream-open": "opening a stream from a pipe, against `age -d`",
}
START = {"first-use": "first use, with calibration", "later-use": "later uses",
         "runtime-first-load": "loading the runtime, first in the process", "runtime-load": "loading the runtime again",
         "first-dispatcher": "a thread's first dispatcher",
         "provider-load": "loading the provider, added to `openssl`", "threads": "threads started by loading"}
MULTIPLIES = {"limit-registers": "what the CPU multiplies, from registers", "limit-loads": "what the CPU multiplies, with a load each"}
THROUGH = {"runtime-of-kernel": "borrowed requests", "runtime-together-of-kernel": "requests that own their buffers",
           "runtime-alone-over-instruction": "one alone", "runtime-few-over-instruction": "a few"}
KINDS = ("rsa-2048-private", "rsa-3072-private", "rsa-4096-private", "ecdsa-p256-sign", "p256-derive", "p256-generate-derive",
         "x25519-derive", "x25519-generate-derive", "ecdsa-p384-sign", "p384-derive", "p384-generate-derive")
CALLS = ("rsa2048 sign", "rsa3072 sign", "rsa4096 sign", "ecdsap256 sign", "ecdsap384 sign", "ecdhx25519", "rsa2048 verify")


def place(known, name):
    return known.index(name) if name in known else len(known)


def handshake(name):
    return ", ".join(HANDSHAKE.get(part, part) for part in name.split("-"))


def section_files(bench, name, where):
    if bench == "files":
        return place(list(FILES), name), FILES.get(name, name)
    return None


def section_fs(bench, name, where):
    return (0, name) if bench == "fs" else None


def section_served(bench, name, where):
    return (0, name.removeprefix("nginx ")) if bench == "compress" and name.startswith("nginx ") else None


def section_compress(bench, name, where):
    if bench == "compress":
        where = dict(where)
        return (name, where.get("content", ""), -where.get("bytes", 0)), label(name, tuple(where.items()))
    return None


def section_stream(bench, name, where):
    return (0, label(name, where)) if bench == "stream" else None


def section_gpu(bench, name, where):
    if bench in ("gpu", "stream-gpu"):
        return (bench, name, dict(where).get("bytes", 0)), label(name, where)
    return None


def section_batch(bench, name, where):
    if bench == "engines" and "batch" in dict(where):
        return (name, dict(where)["bytes"], dict(where)["batch"]), label(name, where)
    return None


def section_engines(bench, name, where):
    if bench in ("engines", "instruction_speed"):
        how = "" if bench == "engines" else ", by `instruction_speed`"
        return (name, dict(where).get("bytes", 0)), label(name, where) + how
    return None


def section_ciphers(bench, name, where):
    return ((name, dict(where)["bytes"]), label(name, where)) if bench == "openssl" and "bytes" in dict(where) else None


def section_kdf(bench, name, where):
    return (0, name) if bench == "kdf" else None


def section_lanes(bench, name, where):
    if bench == "lanes" and (name in KINDS or name in MULTIPLIES):
        return place(KINDS, name), MULTIPLIES.get(name, name)
    return None


def section_jobs(bench, name, where):
    return ((place(CALLS, name), dict(where).get("jobs", 0)), label(name, where)) if bench == "openssl" else None


def section_many(bench, name, where):
    if bench == "https" and not name.startswith("response") and not name.endswith("p99") and dict(where).get("connections") == 64:
        return 0, handshake(name)
    return None


def section_few(bench, name, where):
    if bench == "https" and not name.startswith("response"):
        return (name, dict(where).get("connections", 0)), label(handshake(name), where)
    return None


def section_responses(bench, name, where):
    return (0, {"response-64k": "64 KiB", "response-1m": "1 MiB"}.get(name, name)) if bench == "https" else None


def section_dispatch(bench, name, where):
    if bench == "dispatch" and name != "added":
        return dict(where).get("bytes", 0), f"{label(name, where)}, against `aws-lc-rs` called directly"
    if bench == "dispatch":
        return (1 << 40) + dict(where).get("bytes", 0), f"added to a call of {size(dict(where).get('bytes', 0))}"
    return None


def section_through(bench, name, where):
    where = dict(where)
    if bench == "lanes" and name in THROUGH:
        few = f" ({where['requests']})" if "requests" in where else ""
        rank = place(KINDS, where.get("kind")), place(list(THROUGH), name), where.get("requests", 0)
        return rank, f"{where.get('kind')}, {THROUGH[name]}{few}"
    return None


def section_start(bench, name, where):
    return (place(list(START), name), START.get(name, name)) if bench == "start" else None


def section_other(bench, name, where):
    return (bench, name), f"{bench}: {label(name, where)}"


SECTIONS = (
    ("Files", section_files, shown,
     "`wattlock bench files`. How many times as fast, whole processes, from memory (tmpfs), two cores. Values near 1 beside `cp` mean "
     "that encryption costs nothing next to copying."),
    ("Encrypted folders", section_fs, shown_folder,
     "`wattlock bench fs`: a mounted volume. Three ratios: time against gocryptfs, processor time of the serving process against "
     "gocryptfs's, and time against the same FUSE layer without cryptography."),
    ("Compressed responses of nginx", section_served, shown,
     "`wattlock bench compress --only nginx`: the worker's processor time for a response of generated HTML, against the same nginx with "
     "its own gzip filter; *p99* and *last byte* are latencies. *last byte* is against Wattlock without other cores."),
    ("Compression", section_compress, shown,
     "`wattlock bench compress`: processor time against zlib's level of the same number, and of a whole file against `pigz`."),
    ("The published stream, on an emulated machine", section_stream, shown,
     "`wattlock bench stream`: joules for 1,000 messages. The K20M is emulated, its joules are modelled; time and bytes are measured."),
    ("GPUs", section_gpu, shown,
     "`wattlock bench gpu` and `wattlock bench stream --machine gpu`: kernels and copies in GB/s, a file of the host sealed by CPU, GPU "
     "and both, one opened into the GPU's memory; then the published stream by its rules, whose rate the velocity sets. The GPU is an "
     "NVIDIA H200."),
    ("Hashes, MACs and AES-CBC in lanes", section_batch, shown,
     "`wattlock bench engines --batch`: many messages in one call of the lanes, one core: 16 of 16 KiB against OpenSSL one by one; "
     "*unlike* ones of 64 bytes to 16 KiB against equal ones; *by the runtime*, one to three in one call against a call for each."),
    ("Ciphers: the engines themselves", section_engines, shown,
     "`wattlock bench engines` and the example `instruction_speed`: the fastest engine, called directly, against `openssl speed` or "
     "OpenSSL's calls, one core."),
    ("Ciphers: OpenSSL with the provider", section_ciphers, shown,
     "`scripts/measure/measure-openssl.sh`: `openssl speed` with the provider against the same without it, one core."),
    ("Key derivation: OpenSSL with the provider", section_kdf, shown,
     "`tests/kdf.c` of the provider, as libssl makes each derivation: fetch, context, parameters, derive, free."),
    ("Public keys, eight at a time", section_lanes, shown,
     "`wattlock bench lanes`: operations a second of full batches of eight on one core, against OpenSSL one by one."),
    ("Public keys: OpenSSL with the provider, alone and in jobs", section_jobs, shown,
     "`scripts/measure/measure-openssl.sh`: `openssl speed` with so many asynchronous jobs, which is how programs let operations wait for "
     "each other. Rows without jobs are calls that wait for nobody."),
    ("TLS handshakes, 64 connections", section_many, shown,
     "`wattlock bench https`: full handshakes of one nginx worker with Wattlock, against the same nginx without it; *resumed*: nine of "
     "ten resume a session. *Both certificates*: ECDSA P-256 and RSA-2048, and one client in ten knows RSA alone. OpenSSL 3.0 has no "
     "X25519MLKEM768: there the stock server takes X25519 of the same clients. Ratios are those of the worker's processor time, or of "
     "rates where the list of runs says *time*."),
    ("TLS handshakes, few connections, and the latency of 64", section_few, shown,
     "The same, where there is little to gather. Latencies are ratios, too: above 1, Wattlock's is the shorter."),
    ("HTTPS responses", section_responses, shown,
     "`wattlock bench https --rows response`: the worker's processor time for a response with TLS 1.3 and AES-256-GCM, and, as *cbc*, "
     "with TLS 1.2 and AES128-SHA: stock with its default buffer against `ssl_buffer_size 128k`, or both with the same."),
    ("What the runtime adds to one request", section_dispatch, shown,
     "`wattlock bench dispatch`."),
    ("What the runtime leaves of the lanes", section_through, shown,
     "`wattlock bench lanes`, `adaptive`. Full batches: the rate through the runtime over that of the bare kernel. One request "
     "alone, and a few together: their time over that of `instruction` called directly."),
    ("Starting", section_start, shown, "`wattlock bench start`."),
    ("Other rows", section_other, shown, "Rows of the data that no table above takes."),
)


def order(columns):
    return sorted(columns, key=lambda c: (list(COLUMNS).index(c[0]), c[1]))


def heading(cpu, line):
    return COLUMNS[cpu] + (f", OpenSSL {line}" if line else "")


def absent(have):
    """The columns that a table has not, because nobody ran its rows there."""
    lines = sorted({line for _, line in have})
    wanted = [(cpu, line) for cpu in COLUMNS if cpu != "none" for line in (["3.0", "3.5"] if "3.0" in lines or "3.5" in lines else [""])]
    return [heading(*c) for c in wanted if c not in have]


def counted(title, cells):
    """A section's row of the summary: how many figures, the least, the middle and the most, and how many are losses."""
    ratios = sorted(value for value in (median(row) for _, row in cells) if value is not None)
    alone = [row for _, row in cells if ratio_known(row) and median(row) is None]
    losses = sum(round(value, 2) < 1 for value in ratios) + sum(round(row["high"], 2) < 1 for row in alone)
    link = re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")
    middle = [figure(ratios[at]) for at in (0, (len(ratios) - 1) // 2, -1)] if ratios else ["-"] * 3
    none = len(alone) - sum(round(row["high"], 2) < 1 for row in alone)
    return f"| [{title}](tables/README.md#{link}) | " + " | ".join([str(len(ratios) + len(alone)), *middle, str(none), str(losses)]) + " |"


def performance(runs):
    """The summary, and the tables."""
    data, used = newest(runs), []
    taken, body, summary = set(), [], []

    def mark(run):
        if run not in used:
            used.append(run)
        return used.index(run)

    for title, select, show, words in SECTIONS:
        rows = []
        for at, (what, cells) in enumerate(data.items()):
            if what[0] == "fs" and what[1].endswith(PEERS):
                continue
            chosen = what not in taken and select(*what)
            if chosen:
                rows.append((chosen[0], at, chosen[1], cells))
                taken.add(what)
        if not rows:
            continue
        rows.sort(key=lambda row: row[:2])
        columns = order({c for *_, cells in rows for c in cells})
        body += [f"## {title}", "", *wrap(words), ""]
        summary.append(counted(title, [cell for *_, cells in rows for cell in cells.values()]))
        body += ["| | " + " | ".join(heading(*c) for c in columns) + " |", "|---" * (len(columns) + 1) + "|"]
        for _, _, name, cells in rows:
            texts = [f"{show(cells[c][1])}<sup>@{mark(cells[c][0])}@</sup>" if c in cells else "" for c in columns]
            body.append(f"| {name} | " + " | ".join(texts) + " |")
        body.append("")
        missing = absent(set(columns))
        if missing:
            body += [*wrap("Not run: " + "; ".join(missing) + "."), ""]
    names, counts = [], {"": 0, "c": 0}
    for run in used:
        kind = "c" if "carried" in run else ""
        counts[kind] += 1
        names.append(f"{kind}{counts[kind]}")
    text = re.sub(r"@(\d+)@", lambda m: names[int(m[1])], "\n".join(body))
    listed = ["| run | CPU | date | commit | command | beside | ratios by | remarks |", "|---|---|---|---|---|---|---|---|"]
    for name, run in zip(names, used):
        listed.append("| " + " | ".join([name, *described(run)]) + " |")
    head = ["# What is measured", "", MADE, "", *sum(([*wrap(words), ""] for words in HEAD), [])]
    head += ["| figures of | number | least | median | most | no difference | losses |", "|---" * 7 + "|", *summary, ""]
    tables = ["# Tables", "", MADE, "", *sum(([*wrap(words), ""] for words in TABLES_HEAD), []), text, "## Runs", "", *listed, ""]
    return "\n".join(head), "\n".join(tables)


# Rows of `bench fs` that are no figure of ours: every row of ours is a ratio to them.
PEERS = ("plain layer", "gocryptfs")

HEAD = (
    "Figures are ratios: how many times as fast Wattlock was as its peer in the same run, on any of the CPUs. Below 1 is a loss. No "
    "difference: the interval of the rounds contains 1. Each subject leads to its tables, which name the CPU, date, commit and "
    "command of each figure. Of folders the time against gocryptfs is counted.",
    "All machines were shared virtual machines with two cores. Their neighbours come and go: ratios of short runs are off by some per "
    "cent, and by more at busy times. [limits.md](../design/limits.md) says what bounds these figures, and [the list of "
    "files](README.md) how to add a run.",
)
TABLES_HEAD = (
    "How many times as fast Wattlock was as its peer in the same run. The median stands first. The least and the most of a run's "
    "rounds (of nine and more, the middle half) follow in brackets where they were kept: at least so many times. They stand alone "
    "where that interval contains 1, which means no difference. **Bold is a loss.** An empty cell was not run.",
    "A raised number names the run at the end of this page: CPU, date, commit, command. With a `c` before it, the figure was carried "
    "over from a page of older records that is gone. Such a run had few rounds, and its commit may be older than changes that matter.",
)
MADE = "<!-- Written by scripts/measure/performance.py from docs/measurements/*.json; `make test` fails if it was changed by hand. -->"


def described(run):
    cpu = run["cpu"]
    peers = ", ".join(f"{name} {value}" if value else name for name, value in (run.get("peers") or {}).items())
    by = {}
    for row in filter(ratio_known, run["rows"]):
        by.setdefault({"cpu": "processor time", "time": "time"}[row["by"]], []).append(row["row"])
    kinds = sorted(by, key=lambda kind: -len(by[kind]))
    by = "; ".join([kinds[0]] + [f"{kind} for {', '.join(by[kind])}" for kind in kinds[1:]]) if kinds else ""
    remarks = [f"Carried over: {run['carried']}."] if "carried" in run else []
    remarks += [run["note"]] if run.get("note") else []
    remarks += [f"{label(row['row'], identity(row)[2])}: {row['note']}" for row in run["rows"] if row.get("note")]
    if len({row["note"] for row in run["rows"] if row.get("note")}) == 1 and len(remarks) > 3:
        remarks = remarks[:2 if run.get("note") else 1] + [next(row["note"] for row in run["rows"] if row.get("note"))]
    name = cpu.get("name") or cpu.get("model") or ""
    cells = [f"{name} ({cpu['class']}, {cpu.get('cores', '?')} cores)", run["date"], f"`{run['commit']}`", f"`{run['command']}`",
             peers, by, " ".join(remarks)]
    return [cell.replace("|", "\\|") for cell in cells]


def wrap(text, width=120):
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return lines


# README.md


def lanes(*names):
    return [(("lanes", name, (("batch", 8),)), "3.0") for name in names]


def https(line, *names, connections=64):
    return [(("https", name, (("connections", connections),)), line) for name in names]


def speed(line, *rows):
    return [(("openssl", name, tuple(where.items())), line) for name, where in rows]


def files(*names):
    return [(("files", name, ()), "") for name in names]


GCM = [("aes-256-gcm", {"bytes": count}) for count in (64, 1024, 16384)]
BATCH = ("engines", "sha-256", (("batch", 16), ("bytes", 16384)))
# One row a door: what, against what, the command, which rows of the data, and on which kind of CPU.
TABLE = (
    ("nginx, full handshakes, X25519MLKEM768: ECDSA P-256 / RSA-2048*", "stock nginx, OpenSSL 3.5", "wattlock bench https",
     https("3.5", "tls13-ecdsa256-x25519mlkem768", "tls13-rsa2048-x25519mlkem768"), "intel"),
    ("nginx, full handshakes, X25519, RSA-2048: TLS 1.2 / 1.3", "stock nginx, OpenSSL 3.0", "wattlock bench https",
     https("3.0", "tls12-rsa2048-x25519", "tls13-rsa2048-x25519"), "intel"),
    ("nginx, gzip responses, level 1 / 6*", "stock nginx", "wattlock bench compress",
     [(("compress", f"nginx gzip {level}, 1 MiB", (("connections", 2),)), "3.0") for level in (1, 6)], "amd"),
    ("OpenSSL, AES-256-GCM, 1 / 16 KiB*", "OpenSSL 3.0", "scripts/measure/measure-openssl.sh",
     speed("3.0", *GCM[1:]), "intel"),
    ("files, sealing / opening", "`age`", "wattlock bench files", files("seal", "open"), "amd"),
    ("folders, unpacking / reading", "gocryptfs", "wattlock bench fs",
     [(("fs", f"{name} wattlock 4 KiB", ()), "") for name in ("untar", "read")], "amd"),
    ("streams, sealing / opening*", "`age`", "wattlock bench files", files("stream-seal", "stream-open"), "amd"),
    ("gzip, level 1 / 6*", "`pigz`", "wattlock bench compress",
     [(("compress", f"gzip -{level}", ()), "") for level in (1, 6)], "amd"),
    ("sums, 16 messages side by side*", "OpenSSL 3.0", "wattlock bench engines --batch",
     [(BATCH, "3.0")], "amd"),
)
# The first screen's: sentences with the first figure of these rows.
GAINS = (
    (0, 0, "full TLS handshakes of the unchanged nginx (X25519MLKEM768, ECDSA P-256, 64 connections), by processor time"),
    (4, 0, "sealing a file, beside `age`"),
    (2, 1, "gzip responses of nginx (1 MiB, level 6), by processor time"),
)


def found(data, row):
    """The cells of a row of the table: of the kind of CPU that it names, or of one that has data."""
    def cells(cpu):
        return [data.get(what, {}).get((cpu, line)) for what, line in row[3]]

    return next((cells(cpu) for cpu in (row[4], *COLUMNS) if any(cells(cpu))), [None] * len(row[3]))


def origin(cell):
    """Which run a figure is of."""
    run = cell[0]
    carried = ", old" if "carried" in run else ""
    return f"{run['cpu'].get('name') or run['cpu']['class']}, {run['date']}, {run['commit']}{carried}"


def table(runs):
    """README's part between the marks."""
    data = newest(runs)
    lines = ["| door | beside | times as fast | CPU, date, commit | command |", "|---" * 5 + "|"]
    for row in TABLE:
        cells = found(data, row)
        figures = " / ".join(shown(cell[1], spread=False) if cell else "-" for cell in cells) if any(cells) else ""
        origins = "; ".join(dict.fromkeys(origin(cell) for cell in cells if cell))
        lines.append(f"| {row[0]} | {row[1]} | {figures} | {origins} | `{row[2]}` |")
    lines.append("")
    return "\n".join(lines)


def picture(runs):
    """README's table as bars: one for each figure, a line where Wattlock is as fast as its peer. A loss is orange."""
    data, body, top, left, unit = newest(runs), [], 34, 440, 34
    for row in TABLE:
        ratios = [median(cell[1]) for cell in found(data, row) if cell and median(cell[1])]
        if not ratios:
            continue
        middle = top + 8 * len(ratios)
        name = html.escape(f"{row[0].replace('*', '')}, beside {row[1]}".replace("`", ""))
        body.append(f'<text x="{left - 10}" y="{middle + 4}" text-anchor="end">{name}</text>')
        for ratio in ratios:
            colour = "#c2571a" if round(ratio, 2) < 1 else "#2f6f9f"
            body.append(f'<rect x="{left}" y="{top}" width="{ratio * unit:.0f}" height="12" fill="{colour}"/>')
            body.append(f'<text x="{left + ratio * unit + 6:.0f}" y="{top + 11}">{figure(ratio)}</text>')
            top += 16
        top += 10
    width = left + 350
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top}" font-family="sans-serif" font-size="12" fill="#222">',
        "<!-- Written by scripts/measure/performance.py from docs/measurements/*.json. -->",
        f'<rect width="{width}" height="{top}" fill="#fff"/>',
        f'<text x="{left + unit}" y="18" text-anchor="middle">1: as fast as the peer</text>', *body,
        f'<path d="M{left + unit} 24V{top - 6}" stroke="#222" stroke-dasharray="3 3"/>', "</svg>", ""])


def hanging(text):
    first, *rest = wrap(text, 118)
    return [first, *(f"  {line}" for line in rest)]


def gains(runs):
    """README's first screen: three figures, each with its command and age."""
    data, lines = newest(runs), []
    for number, place_, words in GAINS:
        cell = found(data, TABLE[number])[place_]
        if cell:
            lines += hanging(f"- **{shown(cell[1], spread=False)} times as fast**: {words} (`{TABLE[number][2]}`, {origin(cell)});")
    return "\n".join([*lines[:-1], lines[-1].removesuffix(";") + "."] if lines else []) + "\n"


def between(readme, begin, end, text):
    """README with a text between two marks."""
    if readme.count(begin) != 1 or readme.count(end) != 1 or readme.index(begin) > readme.index(end):
        raise Wrong(f"README.md: not one {begin} and one {end} after it")
    before, rest = readme.split(begin)
    after = rest.split(end)[1]
    return f"{before}{begin}\n\n{text}\n{end}{after}"


def with_table(readme, text, first=""):
    """README with its table and, where it has the marks, the gains of its first screen."""
    whole = between(readme, BEGIN, END, text)
    if GAINS_BEGIN in readme:
        whole = between(whole, GAINS_BEGIN, GAINS_END, first)
    outside = re.sub(f"({BEGIN}.*?{END}|{GAINS_BEGIN}.*?{GAINS_END})", "", whole, flags=re.S)
    stray = re.search(r"\d+(\.\d+)?( to \d+(\.\d+)?)? (times (as|faster|slower|more|less)|% (faster|slower|less|more))", outside)
    if stray:
        raise Wrong(f"README.md: '{stray[0]}' stands outside what data fills")
    return whole


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--root", type=Path, default=ROOT)
    options = parser.parse_args(arguments)
    folder, readme = options.root / "docs/measurements", options.root / "README.md"
    try:
        runs = load(folder)
        present = readme.read_text()
        summary, tables = performance(runs)
        wanted = {folder / "performance.md": summary, folder / "tables/README.md": tables, folder / "gains.svg": picture(runs),
                  readme: with_table(present, table(runs), gains(runs))}
    except Wrong as wrong:
        print(wrong, file=sys.stderr)
        return 1
    differ = False
    for path, text in wanted.items():
        old = path.read_text() if path.exists() else ""
        if old != text:
            differ = True
            if options.check:
                both = (text.splitlines(True) for text in (old, text))
                sys.stdout.writelines(difflib.unified_diff(*both, path.name, f"{path.name}, from the data"))
            else:
                path.parent.mkdir(exist_ok=True)
                path.write_text(text)
    if options.check and differ:
        print("figures are not those of the data: scripts/measure/performance.py writes them", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
