#!/usr/bin/env python3
"""What watching costs. PROGRAM is `wattlock`, which must be a release build; all programs have counters in a folder of
their own.

    scripts/measure/watch.py PROGRAM top [--programs 64] [--seconds 20]
    scripts/measure/watch.py PROGRAM exporter [--programs 64] [--seconds 60]
    scripts/measure/watch.py PROGRAM exit [--programs 64] [--rounds 400]
    scripts/measure/watch.py PROGRAM served [--rounds 15] [--seconds 2] [--module FILE]

top       the share of a core that `wattlock top` takes on a terminal of its own, at one look a second. Each program
          seals a little every 0.1 seconds, so that the screen changes each second.
exporter  the same of `wattlock exporter`, with its page open (what the page fetches, as often as the page does) and a
          scrape each five seconds.
exit      what counters cost a program that ends at once: `wattlock sum` of a small file with a folder for counters and
          without one, in turn, while the programs are at work with counters in that folder. The difference holds making
          the file, counting and leaving its totals behind, so leaving them costs less.
served    handshakes that nginx completes while `top` and the exporter watch, by those with both stopped, in turn
          (`wattlock bench point https`).
"""
import argparse
import fcntl
import http.client
import json
import os
import pathlib
import pty
import re
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time

# As often as the page fetches, from its own source.
PAGE = pathlib.Path(__file__).resolve().parents[2] / "crates/wattlock-exporter/src/page/page.js"
EVERY = int(re.search(r"EVERY = (\d+)", PAGE.read_text())[1]) / 1000
SCRAPE_EVERY = 5


def cpu_seconds(pid):
    """Seconds of processor time of a process's threads, by the scheduler's nanoseconds: a clock tick is as long as a look
    takes."""
    used = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/schedstat") as file:
            used += int(file.read().split()[0])
    return used / 1e9


def resident_mib(pid):
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", text)[1]) / 1024


def counted(folder):
    """The processes that have a file of counters, PID-N."""
    names = (re.fullmatch(r"(\d+)-\d+", name) for name in os.listdir(folder))
    return {int(name[1]) for name in names if name}


class Programs:
    """Programs that seal a little every 0.1 seconds until the end of the block."""

    def __init__(self, program, count, folder, environment):
        key = subprocess.run([program, "keygen", "-o", f"{folder}/key.txt"], capture_output=True, check=True, text=True)
        recipient = next(word for word in (key.stdout + key.stderr).split() if word.startswith("age1"))
        self.running, self.stop, self.folder = [], threading.Event(), folder
        for number in range(count):
            # A name of its own for each: programs of one name are one row.
            own = f"{folder}/program-{number:03}"
            os.symlink(program, own)
            seal = [own, "seal", "-q", "-f", "-r", recipient, "-o", "/dev/null"]
            self.running.append(subprocess.Popen(seal, stdin=subprocess.PIPE, bufsize=0, env=environment))
        self.feeder = threading.Thread(target=self.feed)

    def feed(self):
        while not self.stop.wait(0.1):
            for one in self.running:
                one.stdin.write(b"x" * 64 * 1024)

    def seen(self):
        return len(counted(f"{self.folder}/telemetry") & {one.pid for one in self.running})

    def __enter__(self):
        self.feeder.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.feeder.join()
        for one in self.running:
            one.stdin.close()
        for one in self.running:
            one.wait()


class Top:
    """`wattlock top` on a terminal of 24 lines of 80 columns, whose output is read as a terminal does."""

    def __init__(self, program, environment):
        self.terminal, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        environment = dict(environment, TERM="xterm-256color")
        self.process = subprocess.Popen([program, "top"], stdin=slave, stdout=slave, stderr=slave, env=environment,
                                        start_new_session=True)
        os.close(slave)
        self.drawn = 0
        self.reader = threading.Thread(target=self.drain)
        self.reader.start()

    def drain(self):
        while True:
            try:
                self.drawn += len(os.read(self.terminal, 65536))
            except OSError:
                return

    def end(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        self.process.wait()
        self.reader.join()


class Exporter:
    """`wattlock exporter` with its page open and a scrape each five seconds, while `looking` is set."""

    def __init__(self, program, environment):
        command = [program, "exporter", "--listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        self.address = self.process.stdout.readline().strip().removeprefix("http://").rstrip("/")
        self.looking, self.done, self.answers = threading.Event(), threading.Event(), 0
        self.looking.set()
        paths = [("/api/v1/snapshot", EVERY), ("/metrics", SCRAPE_EVERY)]
        self.threads = [threading.Thread(target=self.ask, args=one) for one in paths]
        for one in self.threads:
            one.start()

    def ask(self, path, every):
        while not self.done.wait(every):
            if self.looking.is_set():
                connection = http.client.HTTPConnection(self.address, timeout=30)
                connection.request("GET", path)
                answer = connection.getresponse()
                if answer.status != 200 or not answer.read():
                    sys.exit(f"{path}: {answer.status}")
                connection.close()
                self.answers += 1

    def end(self):
        self.done.set()
        self.process.send_signal(signal.SIGCONT)
        for one in self.threads:
            one.join()
        self.process.terminate()
        self.process.wait()


def share(process, seconds):
    time.sleep(3)
    before, begun = cpu_seconds(process.pid), time.monotonic()
    time.sleep(seconds)
    used, elapsed = cpu_seconds(process.pid) - before, time.monotonic() - begun
    return {"core_percent": round(100 * used / elapsed, 3), "cpu_seconds": round(used, 3), "seconds": round(elapsed, 1),
            "resident_mib": round(resident_mib(process.pid), 1)}


def of_watcher(arguments, folder, environment, watcher):
    with Programs(arguments.program, arguments.programs, folder, environment) as programs:
        one = watcher(arguments.program, environment)
        try:
            result = share(one.process, arguments.seconds)
            result["programs"] = programs.seen()
            if result["programs"] < arguments.programs:
                sys.exit(f"only {result['programs']} of {arguments.programs} programs have counters")
        finally:
            one.end()
    return result


def of_exit(arguments, folder, environment):
    (folder / "input").write_bytes(b"wattlock" * 1000)
    # A folder in which nothing can be made is no folder for counters.
    without = dict(environment, WATTLOCK_TELEMETRY_DIR="/proc/wattlock")
    times = {"with": [], "without": []}
    with Programs(arguments.program, arguments.programs, folder, environment) as programs:
        # All have made their files, as `share` waits for.
        time.sleep(3)
        for number in range(2 * arguments.rounds):
            which = "with" if number % 2 else "without"
            begun = time.perf_counter()
            subprocess.run([arguments.program, "sum", str(folder / "input")], stdout=subprocess.DEVNULL, check=True,
                           env=environment if which == "with" else without)
            times[which].append((time.perf_counter() - begun) * 1000)
        seen = programs.seen()
        if seen < arguments.programs:
            sys.exit(f"only {seen} of {arguments.programs} programs have counters")
    totals = [name for name in os.listdir(folder / "telemetry") if not re.fullmatch(r"\d+-\d+", name)]
    if not totals:
        sys.exit("no totals were left behind")
    medians = {which: statistics.median(some) for which, some in times.items()}
    return {"programs": seen, "rounds": arguments.rounds, "with_ms": round(medians["with"], 3),
            "without_ms": round(medians["without"], 3), "counters_ms": round(medians["with"] - medians["without"], 3)}


def of_served(arguments, folder, environment):
    command = [arguments.program, "bench", "point", "https", "--rounds", "1", "--seconds", str(arguments.seconds)]
    if arguments.module:
        command += ["--module", arguments.module]
    top, exporter = Top(arguments.program, environment), Exporter(arguments.program, environment)
    ratios, rates = [], {"watched": [], "alone": []}
    try:
        for number in range(arguments.rounds):
            pair = {}
            # In turn, each first as often as second.
            for which in ("watched", "alone") if number % 2 else ("alone", "watched"):
                watched = which == "watched"
                (exporter.looking.set if watched else exporter.looking.clear)()
                for process in (top.process, exporter.process):
                    process.send_signal(signal.SIGCONT if watched else signal.SIGSTOP)
                ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
                pair[which] = json.loads(ran.stdout)["figures"]["rate"]["value"]
                rates[which].append(pair[which])
            ratios.append(pair["watched"] / pair["alone"])
    finally:
        top.end()
        exporter.end()
    mean, spread = statistics.mean(ratios), statistics.stdev(ratios)
    half = 2.1 * spread / len(ratios) ** 0.5
    return {"rounds": arguments.rounds, "ratio_median": round(statistics.median(ratios), 4), "ratio_mean": round(mean, 4),
            "interval_95": [round(mean - half, 4), round(mean + half, 4)],
            "watched_per_s": round(statistics.median(rates["watched"])), "alone_per_s": round(statistics.median(rates["alone"]))}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=os.path.abspath)
    parser.add_argument("what", choices=["top", "exporter", "exit", "served"])
    parser.add_argument("--programs", type=int, default=64)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--module", type=os.path.abspath)
    arguments = parser.parse_args()
    arguments.seconds = arguments.seconds or {"top": 20, "exporter": 60, "exit": 0, "served": 2}[arguments.what]
    arguments.rounds = arguments.rounds or {"exit": 400, "served": 15}.get(arguments.what, 1)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = pathlib.Path(name)
        environment = dict(os.environ, WATTLOCK_TELEMETRY_DIR=f"{folder}/telemetry")
        if arguments.what in ("top", "exporter"):
            watcher = Top if arguments.what == "top" else Exporter
            result = of_watcher(arguments, folder, environment, watcher)
        else:
            result = (of_exit if arguments.what == "exit" else of_served)(arguments, folder, environment)
    print(json.dumps(result))


main()
