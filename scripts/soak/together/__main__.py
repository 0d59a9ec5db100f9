#!/usr/bin/env python3
"""Everything at once: `make soak HOURS=`.

    python3 scripts/soak/together --hours H [--json FILE] [--seed N] [--doors NAME,...] [--plant FAULT]

nginx with TLS and compression, a mounted volume, a sealed stream, sealed files and, if Java is there and the bridge is
built, a Kafka topic: all at the same time for H hours, on emulated engines that err, hang, lie and vanish, with `kill -9`,
full disks, few descriptors and settings that change. Every byte that comes out is compared with what went in. At quiet
moments the counters of `wattlock status`, `fs status` and the bridge are compared with what clients counted, and memory
and descriptors must not have grown. Each door must have worked, and each fault must have happened, or the run fails.

--json keeps the result in the form of docs/measurements/checks. --plant shows that the run can fail: `byte`, `count`,
`descriptors` or `memory` plants a fault, and the run must then end with exit code 1.

Exit code: 0 if all was well, 1 if anything was not, 2 if the run was interrupted. Takes root for full disks.
"""

import argparse
import collections
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "test"))
import security  # noqa: E402
from bridge_door import Bridge  # noqa: E402
from desk import REPO, Desk, NotHere, Watch, Wrong  # noqa: E402
from files_door import Files  # noqa: E402
from mount_door import Mount  # noqa: E402
from nginx_door import Nginx  # noqa: E402
from pipe_door import Pipe  # noqa: E402

#: A door that did nothing for so many seconds hangs.
STILL = 300

DOORS = {door.name: door for door in (Nginx, Mount, Pipe, Files, Bridge)}


def work(desk, door, wrong):
    try:
        door.run()
    except BaseException as error:  # noqa: BLE001
        shown = str(error) if isinstance(error, Wrong) else "".join(traceback.format_exception(error))
        wrong.append(f"{door.name}: {shown}")
        desk.failed.set()


def told(desk, began):
    counts = desk.notes.counts
    print(f"{time.monotonic() - began:6.0f} s: {counts['bytes compared'] >> 20} MiB and {counts['counters compared']} counters"
          f" compared, {counts['samples of memory and descriptors']} samples", flush=True)


def together(desk, names):
    """Runs the doors until the time is over. What is wrong, what could not run, and the watch."""
    watch, doors, absent, wrong = Watch(desk), [], {}, []
    threads = []
    began = time.monotonic()
    try:
        for name in names:
            try:
                doors.append(DOORS[name](desk, watch))
            except NotHere as error:
                absent[name] = str(error)
                print(f"not run: {name}: {error}", flush=True)
        desk.end = time.monotonic() + desk.seconds
        threads = [threading.Thread(target=work, args=(desk, door, wrong), daemon=True) for door in doors]
        for thread in threads:
            thread.start()
        spoken, moved = 0, {door.name: (0, time.monotonic()) for door in doors}
        while any(thread.is_alive() for thread in threads):
            for thread in threads:
                thread.join(1)
            if time.monotonic() - began - spoken > 60:
                spoken = time.monotonic() - began
                told(desk, began)
            for door, thread in zip(doors, threads):
                done = sum(count for what, count in list(desk.notes.counts.items()) if what.startswith(f"{door.name}: "))
                if done != moved[door.name][0]:
                    moved[door.name] = done, time.monotonic()
                elif thread.is_alive() and time.monotonic() - moved[door.name][1] > STILL:
                    wrong.append(f"{door.name}: nothing has happened for {STILL} s")
                    desk.failed.set()
            if any("nothing has happened" in line for line in wrong):
                break
    finally:
        desk.failed.set()
        for door in doors:
            door.close()
    told(desk, began)
    if not wrong:
        for door in doors:
            disk = getattr(door, "disk", None)
            wanted = door.demands + (door.demands_disk if disk and disk.real else ())
            wrong += [f"{door.name}: this never happened: {what}" for what in wanted if not desk.notes.of(what)]
            if disk and not disk.real:
                absent[f"full disks of {door.name}"] = "no leave to mount a file system"
        judged = watch.judged()
        if not judged and any(door.name != "files" for door in doors):
            wrong.append("no process lived long enough to say that its memory and descriptors are flat")
        for name, (lives, samples) in sorted(judged.items()):
            print(f"flat: {name}: {lives} lives, {samples} samples")
    return wrong, absent


def result(desk, doors, absent):
    """One sentence with the run's figures."""
    of = desk.notes.of
    faults = collections.Counter()
    for word in ("kill -9", "full disk", "few descriptors", "settings changed"):
        faults[word] = sum(count for what, count in desk.notes.counts.items() if what.endswith(f": {word}"))
    ran = [name for name in doors if name not in absent]
    return (f"{desk.seconds / 60:.0f} minutes of {', '.join(ran)} at once: {of('bytes compared') / 1e9:.2f} GB compared,"
            f" {of('counters compared')} counters equal, {of('samples of memory and descriptors')} samples of memory and"
            f" descriptors flat; {faults['kill -9']} kills, {faults['full disk']} full disks, {faults['few descriptors']} times"
            f" without descriptors, {faults['settings changed']} changes of settings; no difference"
            + "".join(f"; not run: {name} ({why})" for name, why in absent.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, required=True)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    parser.add_argument("--doors", default=",".join(DOORS))
    parser.add_argument("--plant", choices=("byte", "count", "descriptors", "memory"))
    words = parser.parse_args()
    names = words.doors.split(",")
    if not words.hours > 0 or set(names) - set(DOORS):
        parser.error("--hours is positive, --doors are of " + ", ".join(DOORS))
    target = Path(os.environ.get("CARGO_TARGET_DIR") or REPO / "target").resolve()
    program = Path(os.environ.get("WATTLOCK") or target / "release/wattlock").resolve()
    if not program.exists():
        sys.exit(f"{program} is not there: make build")
    signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    os.environ["PATH"] += ":/usr/sbin"
    folder = Path(tempfile.mkdtemp(prefix="wattlock-soak."))
    folder.chmod(0o755)
    print(f"seed {words.seed}, in {folder}", flush=True)
    code = 1
    try:
        desk = Desk(folder, program, provider=program.parent / "libwattlock_provider.so",
                    module=Path(os.environ.get("WATTLOCK_MODULE") or target / "nginx/ngx_http_wattlock_module.so"),
                    nginx=shutil.which("nginx"), bridge=target / "bridge/release/wattlock-bridge", seconds=words.hours * 3600,
                    seed=words.seed, plant=words.plant)
        wrong, absent = together(desk, names)
        for what, count in sorted(desk.notes.counts.items()):
            print(f"{count:12} {what}")
        for line in wrong:
            print(f"WRONG: {line}", file=sys.stderr)
        if not wrong:
            code = 0
            said = result(desk, names, absent)
            print(said)
            if words.json:
                command = f"make soak HOURS={words.hours:g}"
                words.json.write_text(json.dumps(security.run_of(REPO, command, said, None), indent=1) + "\n")
    except KeyboardInterrupt:
        code = 2
    finally:
        if code == 1:
            print(f"kept: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.flush()
    # Threads of doors that do not end hold up nothing.
    os._exit(code)


if __name__ == "__main__":
    main()
