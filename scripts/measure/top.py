#!/usr/bin/env python3
"""The share of a core that `wattlock top` takes, on a terminal of its own, beside programs that have counters.

    scripts/measure/top.py PROGRAM PROGRAMS SECONDS

PROGRAM is `wattlock`. Of the programs, each seals a little every 0.1 seconds, so that the screen changes each second.
"""
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time


def cpu_seconds(pid):
    """Seconds of processor time of a process's threads, by the scheduler's nanoseconds: a clock tick is as long as a look
    takes."""
    used = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/schedstat") as file:
            used += int(file.read().split()[0])
    return used / 1e9


def counted(folder):
    """The processes that have a file of counters, PID-N."""
    names = (re.fullmatch(r"(\d+)-\d+", name) for name in os.listdir(folder))
    return {int(name[1]) for name in names if name}


def feed(programs, stop):
    """A line to each program every now and then."""
    while not stop.wait(0.1):
        for program in programs:
            program.stdin.write(b"x" * 64 * 1024)


def drain(terminal):
    """Reads what is drawn, as a terminal does, and returns how many bytes that was."""
    drawn = 0
    while True:
        try:
            drawn += len(os.read(terminal, 65536))
        except OSError:
            return drawn


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    program, count, seconds = os.path.abspath(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        environment = dict(os.environ, WATTLOCK_TELEMETRY_DIR=f"{folder}/telemetry", TERM="xterm-256color")
        key = subprocess.run([program, "keygen", "-o", f"{folder}/key.txt"], capture_output=True, check=True, text=True)
        recipient = next(word for word in (key.stdout + key.stderr).split() if word.startswith("age1"))
        seal = ["seal", "-q", "-f", "-r", recipient, "-o", "/dev/null"]
        programs = []
        for number in range(count):
            # A name of its own for each: programs of one name are one row.
            own = f"{folder}/program-{number:03}"
            os.symlink(program, own)
            programs.append(subprocess.Popen([own, *seal], stdin=subprocess.PIPE, bufsize=0, env=environment))
        stop = threading.Event()
        feeder = threading.Thread(target=feed, args=(programs, stop))
        feeder.start()
        try:
            terminal, slave = pty.openpty()
            fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
            top = subprocess.Popen([program, "top"], stdin=slave, stdout=slave, stderr=slave, env=environment,
                                   start_new_session=True)
            os.close(slave)
            drawn = []
            reader = threading.Thread(target=lambda: drawn.append(drain(terminal)))
            reader.start()
            time.sleep(3)
            before, begun = cpu_seconds(top.pid), time.monotonic()
            time.sleep(seconds)
            used, elapsed = cpu_seconds(top.pid) - before, time.monotonic() - begun
            seen = len(counted(f"{folder}/telemetry") & {one.pid for one in programs})
            top.terminate()
            top.wait()
            reader.join()
        finally:
            stop.set()
            feeder.join()
            for one in programs:
                one.stdin.close()
            for one in programs:
                one.wait()
    if seen < count:
        sys.exit(f"only {seen} of {count} programs have counters: the figure would be of fewer")
    print(f"{100 * used / elapsed:.2f} % of a core ({used:.2f} s in {elapsed:.1f} s) with {seen} programs; "
          f"{drawn[0]} bytes drawn")


if __name__ == "__main__":
    main()
