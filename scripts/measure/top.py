#!/usr/bin/env python3
"""The share of a core that `wattlock top` takes, on a terminal of its own, beside programs that have counters.

    scripts/measure/top.py PROGRAM PROGRAMS SECONDS

PROGRAM is `wattlock`. Of the programs, each seals a little every 0.1 seconds, so that the screen changes each second.
"""
import fcntl
import os
import pty
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time


def cpu_seconds(pid):
    """Seconds of processor time of a process, user and system."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
        seal = [program, "seal", "-q", "-f", "-r", recipient, "-o", "/dev/null"]
        programs = [subprocess.Popen(seal, stdin=subprocess.PIPE, bufsize=0, env=environment) for _ in range(count)]
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
            seen = len(os.listdir(f"{folder}/telemetry"))
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
