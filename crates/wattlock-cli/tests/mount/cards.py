"""Writes, forgets and reads files in a mount for some seconds; every byte that is read must be the one written.

cards.py FOLDER SECONDS SEED MODEL: MODEL gets the files' contents as they must be read later.
"""

import os
import random
import sys
import threading
import time

root, seconds, seed, model = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
LENGTH, until = 1_500_000, time.monotonic() + seconds
wrong, rounds = [], [0] * 3


def work(at):
    draw = random.Random(seed * 10 + at)
    path, content = f"{root}/file{at}", bytearray()
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    while time.monotonic() < until and not wrong:
        rounds[at] += 1
        size = draw.choice((100, 4096, 60_000, 300_000, 1 << 20))
        place = draw.randrange(LENGTH - size)
        data = draw.randbytes(size)
        content.extend(bytes(max(0, place + size - len(content))))
        content[place : place + size] = data
        os.pwrite(file, data, place)
        if draw.random() < 0.6:
            # What is written out and forgotten is opened by an engine when it is read again.
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        place = draw.randrange(len(content))
        size = draw.choice((4096, 200_000, LENGTH))
        if os.pread(file, size, place) != bytes(content[place : place + size]):
            wrong.append(f"round {rounds[at]} of file {at}: other bytes at {place}")
    os.fsync(file)
    os.close(file)
    with open(f"{model}/file{at}", "wb") as copy:
        copy.write(content)


def kept(at):
    try:
        work(at)
    except OSError as error:
        wrong.append(f"file {at}, round {rounds[at]}: {error}")


threads = [threading.Thread(target=kept, args=(at,)) for at in range(len(rounds))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
if wrong:
    sys.exit("; ".join(wrong))
print(sum(rounds))
