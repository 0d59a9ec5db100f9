#!/usr/bin/env python3
"""Tries the alerts and the dashboard of monitoring/ on a real Prometheus: every expression is evaluated on what
`wattlock exporter` says of programs at work, and none may be an error; those that ask what happened have an answer.

    scripts/test/monitoring.py [WATTLOCK]     the program; target/debug/wattlock, or release

Debian's `apt-get install prometheus` brings both programs; PROMETHEUS= names another folder with them. Without them it
says so and ends well."""

import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
# What asks for something that must not be there while all is well.
MAY_BE_EMPTY = {"WattlockExporterDown", "WattlockCountersPassedOver"}
MAY_BE_EITHER = set()
CELL = ["requests", "bytes", "errors", "timed", "timed_ns", "held_ns", "batch_sum", "energy_nj", "refused", "submit_ns"]


def tool(name):
    place = os.environ.get("PROMETHEUS")
    return shutil.which(name, path=place) if place else shutil.which(name)


def program():
    if len(sys.argv) > 1:
        return pathlib.Path(sys.argv[1]).resolve()
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    found = [target / kind / "wattlock" for kind in ("debug", "release")]
    built = [path for path in found if path.exists()]
    return max(built, key=lambda path: path.stat().st_mtime) if built else None


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Counters:
    """A telemetry file of this process, by the page about its layout: a program to which everything happens."""

    def __init__(self, folder, name, works):
        self.path, self.works, self.rounds = folder / f"{os.getpid()}-{0 if works else 1}", works, 0
        lists = {"engines": ["cuda"], "details": [""], "energy": ["derived: by a test"], "kinds": ["aes-256-gcm-open"]}
        header = {"format": 1, "version": "0", "pid": os.getpid(), "program": name, "started": 0, "born": 0,
                  "policy": "", "objective": "", "profile": "", "inactive": [], "cell": CELL, "rows": 1, "reasons": 1,
                  "engine": ["in_flight", "quarantines", "silent"], **lists}
        self.header = json.dumps(header, separators=(",", ":")).encode().ljust(65536, b"\0")
        self.write()

    def write(self):
        self.rounds += 1
        count = self.rounds if self.works else 0
        words = [count] * len(CELL) + [2, count, count]
        counters = b"".join(word.to_bytes(8, sys.byteorder) for word in words)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600)
        os.pwrite(descriptor, self.header + counters.ljust(8 * 16, b"\0"), 0)
        os.close(descriptor)


def expressions(interval="30s"):
    """Name and expression of each panel and each alert."""
    board = json.loads((ROOT / "monitoring/grafana.json").read_text())
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            text = target["expr"].replace("$__rate_interval", interval)
            for variable in ("instance", "program"):
                text = text.replace(f'"${variable}"', '".*"')
            assert "$" not in text, text
            yield panel["title"], text
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            metric = variable["query"]["query"].split("(")[1].split(",")[0]
            yield f"variable {variable['name']}", metric


def first_events(promtool, place):
    """A panel of what must not happen shows the first time that it does, when its series begins at 1."""
    labels = {"engine": "cuda", "program": "p", "kind": "k", "reason": "silent"}
    text = ",".join(f'{name}="{value}"' for name, value in labels.items())
    metrics = [f"wattlock_{name}_total" for name in ("fallbacks", "refused", "errors", "quarantines")]
    series = {"wattlock_exporter_build_info": "1x120", **{f"{one}{{{text}}}": "_x60 1x60" for one in metrics}}
    asked = [expr for _, expr in expressions("5m") if any(one in expr for one in metrics)]
    tests = []
    for expr in asked:
        by = re.search(r"sum by \(([^)]*)\)", expr)
        found = ",".join(f'{name}="{labels[name]}"' for name in (by[1].split(", ") if by else []))
        tests.append({"expr": expr, "eval_time": "63m", "exp_samples": [{"labels": f"{{{found}}}", "value": 1}]})
    if len(tests) < len(metrics) + 1:
        sys.exit(f"monitoring: only {len(tests)} panels of what goes wrong")
    inputs = [{"series": name, "values": values} for name, values in series.items()]
    path = place / "panels_test.json"
    path.write_text(json.dumps({"tests": [{"interval": "1m", "input_series": inputs, "promql_expr_test": tests}]}))
    subprocess.run([promtool, "test", "rules", path], check=True, stdout=subprocess.DEVNULL)


def ask(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return json.load(answer)


def wait_for(what, holds, seconds=60):
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            sys.exit(f"monitoring: {what}: not within {seconds} s")
        time.sleep(0.3)


def answers(port):
    try:
        return bool(ask(port, "/api/v1/query?query=up")["data"]["result"])
    except (OSError, urllib.error.URLError):
        return False


def at_work(wattlock, place, environment, counters, stop):
    (place / "input").write_bytes(b"wattlock" * 100_000)
    while not stop.is_set():
        command = [wattlock, "sum", "input"]
        done = subprocess.run(command, cwd=place, env=environment, stdout=subprocess.DEVNULL, check=False)
        if done.returncode:
            sys.exit("monitoring: wattlock sum failed")
        counters.write()
        stop.wait(0.3)


def alone():
    """Goes on with an empty /dev/shm of its own, as root: other programs' folders there are none of this test's. Whether it
    is so."""
    if os.environ.get("WATTLOCK_ALONE"):
        return True
    own = ["unshare", "--mount", "--propagation", "private", "sh", "-c", 'mount -t tmpfs shm /dev/shm && exec "$@"', "sh"]
    if os.geteuid() == 0 and shutil.which("unshare") and not subprocess.run([*own, "true"], check=False).returncode:
        os.environ["WATTLOCK_ALONE"] = "1"
        os.execvp(own[0], [*own, sys.executable, *sys.argv])
    return False


def main():
    prometheus, promtool, wattlock = tool("prometheus"), tool("promtool"), program()
    if not prometheus or not promtool:
        print("skipped: monitoring: no prometheus and promtool (apt-get install prometheus, or PROMETHEUS=)")
        return
    if not wattlock:
        sys.exit("monitoring: no program: cargo build -p wattlock-cli")
    if not alone():
        # What others left there decides.
        MAY_BE_EITHER.add("WattlockCountersPassedOver")
    rules = ROOT / "monitoring/alerts.yml"
    subprocess.run([promtool, "check", "rules", "--lint-fatal", rules], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([promtool, "test", "rules", ROOT / "monitoring/alerts_test.yml"], check=True,
                   stdout=subprocess.DEVNULL)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        first_events(promtool, pathlib.Path(folder))
        on_prometheus(pathlib.Path(folder), prometheus, promtool, wattlock, rules)


def on_prometheus(place, prometheus, promtool, wattlock, rules):
    (place / "counters").mkdir(mode=0o700)
    environment = {**os.environ, "WATTLOCK_TELEMETRY_DIR": str(place / "counters")}
    counters = Counters(place / "counters", "/usr/bin/wattlock mount", True)
    Counters(place / "counters", "idle", False)
    exporter_port, port = free_port(), free_port()
    config = {"global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "rule_files": [str(rules)],
              "scrape_configs": [{"job_name": "wattlock",
                                  "static_configs": [{"targets": [f"127.0.0.1:{exporter_port}"]}]}]}
    (place / "prometheus.yml").write_text(json.dumps(config))
    stop, children = threading.Event(), []
    worker = threading.Thread(target=at_work, args=(wattlock, place, environment, counters, stop), daemon=True)
    try:
        command = [wattlock, "exporter", "--listen", f"127.0.0.1:{exporter_port}"]
        children.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL))
        command = [prometheus, f"--config.file={place}/prometheus.yml", f"--storage.tsdb.path={place}/data",
                   f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]
        children.append(subprocess.Popen(command))
        worker.start()
        wait_for("Prometheus answers", lambda: answers(port))
        text = subprocess.run([wattlock, "exporter", "--once"], env=environment, check=True, capture_output=True).stdout
        lint = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)
        if lint.returncode or lint.stdout or lint.stderr:
            sys.exit(f"monitoring: promtool check metrics: {(lint.stdout + lint.stderr).decode()}")
        evaluate(port)
    finally:
        stop.set()
        for child in reversed(children):
            child.terminate()
            child.wait()
        if worker.ident:
            worker.join()


def evaluate(port):
    def result(text):
        try:
            return ask(port, "/api/v1/query?" + urllib.parse.urlencode({"query": text}))["data"]["result"]
        except urllib.error.HTTPError as error:
            sys.exit(f"monitoring: {text}: {error.read().decode()}")

    wait_for("a rate of what is done", lambda: any(
        float(one["value"][1]) > 0 for one in result("rate(wattlock_fallbacks_total[30s])")))
    wait_for("a program that ended", lambda: result('wattlock_ended_total{program=~".* sum"} > 1'))
    count = 0
    for name, text in expressions():
        if not result(text):
            sys.exit(f"monitoring: {name}: empty: {text}")
        count += 1
    groups = ask(port, "/api/v1/rules")["data"]["groups"]
    for rule in (rule for group in groups for rule in group["rules"]):
        if rule.get("lastError"):
            sys.exit(f"monitoring: {rule['name']}: {rule['lastError']}")
        found = result(rule["query"])
        if rule["name"] not in MAY_BE_EITHER and bool(found) == (rule["name"] in MAY_BE_EMPTY):
            sys.exit(f"monitoring: {rule['name']}: {found or 'empty'}: {rule['query']}")
        count += 1
    # Other users' programs may be at work beside the test.
    idle = [one["metric"]["program"] for one in result(next(
        rule["query"] for group in groups for rule in group["rules"] if rule["name"] == "WattlockIdle"))
        if one["metric"]["uid"] == str(os.geteuid())]
    if idle != ["idle"]:
        sys.exit(f"monitoring: idle are {idle}")
    print(f"monitoring: {count} expressions evaluated, {len(MAY_BE_EMPTY)} of them empty as they should be")


main()
