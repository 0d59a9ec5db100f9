#!/usr/bin/env python3
"""Waits until nothing else uses the machine: what is timed runs alone, or not at all.

    scripts/measure/calm.py [SECONDS [PATIENCE]]    exit code 0 once it has been calm for SECONDS (60), 1 if it has not
                                                    been within PATIENCE (900)

Calm: at most a twentieth of the processors' time is in use, the time that a hypervisor gave to other guests included.
"""
import pathlib
import sys
import time

SHARE, SECONDS, PATIENCE = 0.05, 60, 900


def busy_share(seconds):
    """The share of the machine's processor time that is in use, over so many seconds."""
    def read():
        first = pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        user, nice, system, idle, wait, *rest = map(int, first)
        return idle + wait, user + nice + system + idle + wait + sum(rest)

    idle, total = read()
    time.sleep(seconds)
    idle_now, total_now = read()
    return 1 - (idle_now - idle) / max(1, total_now - total)


def calm(share=busy_share, seconds=SECONDS, patience=PATIENCE):
    """Whether the machine was calm for so long before the patience ended."""
    return any(share(seconds) <= SHARE for _ in range(max(1, patience // seconds)))


if __name__ == "__main__":
    sys.exit(0 if calm(busy_share, *map(int, sys.argv[1:3])) else 1)
