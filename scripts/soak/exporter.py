#!/usr/bin/env python3
"""The exporter with many programs and many scrapes: how long reading all counters takes, and whether memory grows.

    scripts/soak/exporter.py WATTLOCK [--programs 64] [--scrapes 100000] [--most-ms 20] [--most-mib 20] [--json FILE]

The programs are real ones (`wattlock stream seal`, each with its own file of counters), alive during the whole run;
another one ends every second. Scrapes go over one connection. Time is what the exporter says of its last reading (the
median of those seen) and is judged only if the program is a release build; memory is the exporter's resident set at the
end, and its growth over the second half."""

import argparse
import http.client
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time


def resident_kib(process):
    text = pathlib.Path(f"/proc/{process}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", text)[1])


def descriptors(process):
    return len(os.listdir(f"/proc/{process}/fd"))


def start(arguments, place, environment):
    key = subprocess.run([arguments.wattlock, "keygen"], capture_output=True, check=True, text=True).stdout
    recipient = re.search(r"age1\w+", key)[0]
    command = [arguments.wattlock, "stream", "seal", "-r", recipient, "--framing", "lines"]
    programs = []
    for _ in range(arguments.programs):
        one = subprocess.Popen(command, env=environment, cwd=place, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        one.stdin.write(b"a line of a log\n" * 20_000)
        one.stdin.flush()
        programs.append(one)
    return programs


def value(text, name):
    found = [float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if re.match(name + r"[{ ]", line)]
    return sum(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wattlock", type=lambda path: str(pathlib.Path(path).resolve()))
    parser.add_argument("--programs", type=int, default=64)
    parser.add_argument("--scrapes", type=int, default=100_000)
    parser.add_argument("--most-ms", type=float, default=20)
    parser.add_argument("--most-mib", type=float, default=20)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        result = run(arguments, pathlib.Path(folder))
    print(json.dumps(result, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    problems = []
    if "/release/" in arguments.wattlock and result["scan_ms_median"] > arguments.most_ms:
        problems.append(f"reading took {result['scan_ms_median']:.1f} ms")
    if result["resident_mib"] > arguments.most_mib:
        problems.append(f"{result['resident_mib']:.1f} MiB resident")
    if result["growth_kib"] > 1024:
        problems.append(f"grew by {result['growth_kib']} KiB in the second half")
    if result["descriptors_grew"] > 0:
        problems.append(f"{result['descriptors_grew']} descriptors more")
    if result["fell"]:
        problems.append("a counter fell")
    if result["programs_seen"] < arguments.programs:
        problems.append(f"only {result['programs_seen']} programs seen")
    if problems:
        sys.exit("exporter: " + "; ".join(problems))


def run(arguments, place):
    (place / "counters").mkdir(mode=0o700)
    (place / "input").write_bytes(b"wattlock" * 1000)
    environment = {**os.environ, "WATTLOCK_TELEMETRY_DIR": str(place / "counters")}
    programs = start(arguments, place, environment)
    command = [arguments.wattlock, "exporter", "--listen", "127.0.0.1:0"]
    exporter = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        address = exporter.stdout.readline().strip().removeprefix("http://").rstrip("/")
        return scrape(arguments, place, environment, exporter.pid, http.client.HTTPConnection(address))
    finally:
        exporter.kill()
        exporter.wait()
        for one in programs:
            one.kill()
            one.wait()


def scrape(arguments, place, environment, process, connection):
    scans, before, fell, seen = [], 0.0, False, 0
    half, half_open, last_end, begun = 0, 0, 0.0, time.monotonic()
    for number in range(arguments.scrapes):
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        if number % 500 == 0 or number + 1 == arguments.scrapes:
            # Longer than an answer is fresh: this one is read anew.
            time.sleep(0.25)
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
            scans.append(value(text, "wattlock_scan_seconds") * 1000)
            now = value(text, "wattlock_requests_total")
            fell, before = fell or now < before, now
            seen = max(seen, int(value(text, "wattlock_programs")))
        if time.monotonic() - last_end > 1:
            last_end = time.monotonic()
            subprocess.run([arguments.wattlock, "sum", "input"], env=environment, cwd=place, stdout=subprocess.DEVNULL,
                           check=True)
        if number == arguments.scrapes // 2:
            half, half_open = resident_kib(process), descriptors(process)
    end = resident_kib(process)
    return {"programs": arguments.programs, "scrapes": arguments.scrapes, "seconds": round(time.monotonic() - begun, 1),
            "scan_ms_median": statistics.median(scans), "scan_ms_most": max(scans), "bytes": len(text),
            "resident_mib": end / 1024, "growth_kib": end - half, "descriptors_grew": descriptors(process) - half_open,
            "fell": fell, "programs_seen": seen}


main()
