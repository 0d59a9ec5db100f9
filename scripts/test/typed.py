#!/usr/bin/env python3
"""Types what README and `--help` show, as a newcomer would, and fails if a line fails.

    scripts/test/typed.py --wattlock PROGRAM readme [--minutes]   every `sh` block of README.md, in order, in an empty folder
    scripts/test/typed.py --wattlock PROGRAM help [--minutes] [WORD ...]
                                                             every example of every `--help`, each in a folder with
                                                             the files that it names; WORDs choose subcommands
    scripts/test/typed.py marks                                   lines of README that cannot be typed everywhere

Only `age1...` is replaced, by a recipient. Each line gets a terminal, so that a passphrase can be asked for. Lines that
need what not every machine has are marked and counted: in README by a comment before the block,

    <!-- needs NEED -->              the whole block
    <!-- needs NEED: BEGINNING -->   the lines that begin so

and for help in NEEDED below. `fuse`, `root`, `systemd`, `nginx` and `journal` lines are typed if the machine has it (systemd is a stand-in
that restarts nginx), `minutes` lines with --minutes, the others never.

As root all of it happens in namespaces of its own, with copies of /etc and /run and a loopback device: nothing of the
machine changes, and no server is seen outside.
"""
import argparse
import collections
import fcntl
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent.parent
PASSPHRASE = b"correct horse\r"
LONGEST_S = 900

NEEDS = {
    "broker": "a Kafka broker and the bridge",
    "clone": "a clone of the repository; `make fresh` types it",
    "device": "a GPU, a card or a counter",
    "ssh": "another host",
    "installed": "an installed Wattlock; `make fresh` has one",
    "fuse": "a /dev/fuse that may be opened, and fusermount3",
    "journal": "systemd's journal",
    "jq": "jq",
    "minutes": "minutes; `make soak` types it",
    "nginx": "nginx",
    "promtool": "promtool, of Debian's package prometheus",
    "root": "root, and namespaces",
    "systemd": "systemd (and no namespaces for a stand-in)",
}

# Examples of `--help` by their beginning: the first that fits counts.
NEEDED = [
    ("wattlock stream bridge", "broker"),
    ("wattlock bench", "minutes"),
    ("wattlock lab", "minutes"),
    ("wattlock calibrate --quick", None),
    ("wattlock calibrate", "minutes"),
    ("wattlock energy calibrate", "device"),
    ("sudo wattlock energy calibrate", "device"),
    ("wattlock mount", "fuse"),
    ("mount -t wattlock", "installed"),
    ("wattlock umount", "fuse"),
    ("wattlock fs status", "fuse"),
    ("wattlock fs set", "fuse"),
    ("wattlock nginx", "nginx"),
    ("sudo wattlock nginx", "nginx"),
    ("wattlock openssl", "root"),
    ("sudo wattlock openssl", "root"),
    ("wattlock serve", "nginx"),
    ("sudo wattlock serve", "nginx"),
]


def have(need):
    if need == "fuse":
        try:
            os.close(os.open("/dev/fuse", os.O_RDWR))
        except OSError:
            return False
        return shutil.which("fusermount3") is not None
    if need == "root":
        return os.environ.get("TYPED_INSIDE") == "1"
    if need == "nginx":
        return have("root") and shutil.which("nginx") is not None
    if need == "systemd":
        return have("nginx")
    if need == "journal":
        return os.path.isdir("/run/systemd/journal") and shutil.which("journalctl") is not None
    if need in ("jq", "promtool"):
        return shutil.which(need) is not None
    return False


def blocks(text):
    """Every `sh` block of a page: its lines, each with what it needs."""
    marks, inside, found = [], None, []
    for line in text.splitlines():
        if inside is not None:
            if line.startswith("```"):
                found.append((inside, marks))
                inside, marks = None, []
            elif line.strip():
                inside.append(line)
        elif line.startswith("```sh"):
            inside = []
        elif mark := re.fullmatch(r"<!-- needs (\w+)(?:: (.*))? -->", line):
            if mark[1] not in NEEDS:
                raise SystemExit(f"typed: README needs {mark[1]}, of which nobody has heard")
            marks.append((mark[1], mark[2] or ""))
        elif line.strip():
            marks = []
    for lines, marks in found:
        for _, beginning in marks:
            if not any(line.startswith(beginning) for line in lines):
                raise SystemExit(f"typed: no line begins with {beginning!r}, which is marked")
        for line in lines:
            yield line, next((need for need, beginning in marks if line.startswith(beginning)), None)


def run(line, folder, environment, seconds=LONGEST_S, interrupt=None):
    """Types a line into a shell at a terminal. Returns its exit status and what the terminal showed. With `interrupt`, ^C
    is typed after so many seconds: for servers."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.execvpe("bash", ["bash", "--norc", "-c", line], environment)
    fcntl.ioctl(terminal, 0x5414, struct.pack("HHHH", 24, 100, 0, 0))  # TIOCSWINSZ
    shown, asked, begin = b"", 0, time.monotonic()
    interrupted = False
    while True:
        if time.monotonic() - begin > seconds:
            os.killpg(child, signal.SIGKILL)
            shown += b"\n(no end after %d s)" % seconds
            break
        if interrupt and not interrupted and time.monotonic() - begin > interrupt:
            os.write(terminal, b"\x03")
            interrupted = True
        ready, _, _ = select.select([terminal], [], [], 0.2)
        if not ready:
            if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                break  # What it left in the background keeps the terminal open.
            continue
        try:
            piece = os.read(terminal, 65536)
        except OSError:
            break
        if not piece:
            break
        shown += piece
        # A question is what stands last, without a line end; one that was answered does not stand last any more.
        if len(shown) > asked and (question := re.search(rb"(1 or 2|\[y/N\]|[Pp]assphrase[^\r\n]*):? ?$", shown)):
            asked = len(shown)
            os.write(terminal, {b"1 or 2": b"1\r", b"[y/N]": b"y\r"}.get(question[1], PASSPHRASE))
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    return os.waitstatus_to_exitcode(status), shown.decode(errors="replace")


class Desk:
    """Where lines are typed, and the count of what was typed and what was not."""

    def __init__(self, arguments):
        self.folder = pathlib.Path(os.environ.get("TYPED_FOLDER") or tempfile.mkdtemp(prefix="typed-"))
        self.minutes = arguments.minutes
        self.typed, self.failed, self.left = 0, [], collections.Counter()
        bin_folder = self.folder / "bin"
        bin_folder.mkdir(exist_ok=True)
        program = pathlib.Path(arguments.wattlock).resolve()
        (bin_folder / "wattlock").symlink_to(program)
        # Namespaces have no systemd: this restarts nginx, which is all that README asks of it.
        for name, script in [("sudo", 'exec "$@"'), ("systemctl", "nginx -s stop 2>/dev/null; sleep 1; exec nginx")]:
            (bin_folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (bin_folder / name).chmod(0o755)
        self.home = self.folder / "home"
        self.home.mkdir(exist_ok=True)
        self.environment = {
            "HOME": str(self.home),
            "PATH": f"{bin_folder}:/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin",
            "TERM": "xterm",
            "LANG": "C.UTF-8",
            "TMPDIR": str(self.folder),
            "WATTLOCK_STATE_DIR": str(self.folder / "state"),
        }

    def may(self, line, need):
        if need is None or (need == "minutes" and self.minutes) or have(need):
            return True
        self.left[need] += 1
        print(f"left     {line}   ({need})", flush=True)
        return False

    def type(self, line, folder):
        begin = time.monotonic()
        endless = ENDLESS.search(line)
        status, shown = run(line, folder, self.environment, interrupt=4 if endless else None)
        good = status in ((0, 130, -signal.SIGINT) if endless else (0,))
        self.typed += 1
        took = time.monotonic() - begin
        print(f"{'good' if good else f'FAILED {status}':8} {line}   ({took:.1f} s)", flush=True)
        if not good:
            self.failed.append(line)
            print("\n".join(f"    | {row}" for row in shown.splitlines()[-20:]), flush=True)

    def close(self):
        for mounted in [line.split()[1] for line in open("/proc/self/mounts") if str(self.folder) in line.split()[1]]:
            subprocess.run(["fusermount3", "-uz", mounted], stderr=subprocess.DEVNULL)
        if not os.environ.get("TYPED_FOLDER"):
            shutil.rmtree(self.folder, ignore_errors=True)
        left = "".join(f"; {count} need {NEEDS[need]}" for need, count in sorted(self.left.items()))
        print(f"typed: {self.typed} lines, {len(self.failed)} failed{left}")
        return 1 if self.failed or self.typed == 0 else 0


def recipient(desk, folder):
    """The recipient of the first identity that was made in a folder."""
    for name in sorted(folder.glob("**/key*.txt")):
        if found := re.search(r"age1[0-9a-z]{58}", name.read_text()):
            return found[0]
    return "age1..."


def readme(desk):
    home = desk.home
    for line, need in blocks((REPOSITORY / "README.md").read_text()):
        if desk.may(line.split("  #")[0].strip(), need):
            desk.type(line.replace("age1...", recipient(desk, home)), home)
    return desk.close()


def commands(desk, path=()):
    """Every subcommand, by what the help itself lists, with its long help."""
    text = subprocess.run(
        ["wattlock", *path, "--help"], env=desk.environment | {"COLUMNS": "400"}, capture_output=True, text=True
    ).stdout
    yield path, text
    listed = re.search(r"^Commands:\n((?:  .*\n|\n)*)", text, re.M)
    for name in re.findall(r"^  ([a-z][a-z-]*)", listed[1] if listed else "", re.M):
        # The bridge's page is the same for all of its commands while the bridge is not there.
        if name != "help" and path[:2] != ("stream", "bridge"):
            yield from commands(desk, (*path, name))


def examples(text):
    listed = re.search(r"^Examples?:\n((?:  .*\n?)*)", text, re.M)
    for line in (listed[1] if listed else "").splitlines():
        yield re.split(r"\s{3,}", line.strip())[0]


# What a folder has before an example is typed, made once.
FURNISH = r"""
set -e
wattlock keygen -o key.txt 2>/dev/null
mkdir docs letters photos .ssh
for name in docs/a docs/b photos/one.jpg photos/two.jpg letters/2026 access.log app.log notes.txt disk.img; do
    seq 20000 >$name
done
R=$(sed -n 's/^# public key: //p' key.txt)
echo $R >team.txt
tar cf backup.tar docs
wattlock sum -r photos >photos.sha256
ssh-keygen -q -t ed25519 -N '' -f .ssh/id_ed25519
tar c docs | wattlock seal -q -R .ssh/id_ed25519.pub -R team.txt -o docs.tar.sealed
echo correct horse >pass.txt
wattlock seal -q --format age --passphrase-file pass.txt -o secrets.age notes.txt && rm pass.txt
wattlock fs init -r first=$R VOLUME >/dev/null
mkdir MOUNTPOINT
wattlock fs cp --into -i key.txt VOLUME notes.txt / >/dev/null
wattlock fs cp -r --into -i key.txt VOLUME letters /letters >/dev/null
"""


def furnish(desk):
    furnished = desk.folder / "furnished"
    furnished.mkdir()
    environment = desk.environment | {"HOME": str(furnished)}
    made = subprocess.run(["bash", "-c", FURNISH], cwd=furnished, env=environment, capture_output=True, text=True)
    if made.returncode != 0:
        raise SystemExit(f"typed: no furniture: {made.stdout}{made.stderr}")
    return furnished


def help_examples(desk, words):
    furnished = furnish(desk)
    whole = (furnished / "key.txt").read_text()
    known = re.search(r"age1[0-9a-z]{58}", whole)[0]
    undocumented = []
    for path, text in commands(desk):
        if words and not set(words) & set(path):
            continue
        lines = list(examples(text))
        if not lines and not re.search(r"^Commands:", text, re.M):
            undocumented.append(" ".join(path))
        for number, line in enumerate(lines):
            need = next((need for beginning, need in NEEDED if line.startswith(beginning)), None)
            need = need or next((tool for tool in ("jq", "promtool") if f"| {tool}" in line), None)
            need = need or ("ssh" if re.search(r"ssh host|--connect host", line) else None)
            if not desk.may(line, need):
                continue
            desk.home = desk.folder / f"{'-'.join(path) or 'wattlock'}-{number}"
            shutil.copytree(furnished, desk.home, symlinks=True)
            desk.environment["HOME"] = str(desk.home)
            # Copies of one volume, of which each example changes one: to a machine that knew all of them they were older ones.
            desk.environment["WATTLOCK_STATE_DIR"] = str(desk.home / ".local/state/wattlock")
            prepare(desk, line)
            line = line.replace("age1...", known)
            if "..." in line and (named := list((desk.home / "keys").glob("*"))):
                line = re.sub(r"[0-9a-f]{4}\.\.\.", re.search(r"[0-9a-f]{32}", named[0].name)[0], line)
            desk.type(line, desk.home)
            if have("root") and re.search(r"nginx|openssl|MOUNTPOINT", line):
                run(AFTER, desk.home, desk.environment)
    for name in undocumented:
        print(f"FAILED   wattlock {name} --help has no example")
    desk.failed += undocumented
    return desk.close()


# What is typed before an example, by its beginning: what the example is about must exist.
PHRASE = "wattlock fs key add -i key.txt --name mine -p --new-passphrase-file"
STATUS = "server { listen 127.0.0.1:80; location = /wattlock_status { wattlock_status; } }"
SECURE = ("server { listen 127.0.0.1:443 ssl; ssl_certificate /etc/nginx/conf.d/own.pem;"
          " ssl_certificate_key /etc/nginx/conf.d/own.key; }")
KEYS = "wattlock stream keys new --keys keys -R team.txt --label orders"
MOUNTED = "wattlock mount -i key.txt VOLUME MOUNTPOINT"
BEFORE = [
    ("tar c docs | wattlock seal", "rm docs.tar.sealed"),
    ("wattlock open -i key.txt backup.tar.sealed", "wattlock seal -q -R team.txt backup.tar && rm backup.tar"),
    ("wattlock open -i key.txt -o", "wattlock seal -q -R team.txt backup.tar"),
    ("wattlock gzip -t", "wattlock gzip access.log"),
    ("wattlock gzip -d", "wattlock gzip access.log"),
    ("wattlock keygen", "rm key.txt"),
    ("wattlock report", "for name in files serve energy; do wattlock energy --json -o $name.json -- true; done"),
    ("wattlock fs init", "rm -r VOLUME"),
    ("wattlock fs key remove", "wattlock keygen -o laptop.txt && wattlock fs key add -i key.txt --name laptop"
     " -r $(grep -o 'age1.*' laptop.txt) VOLUME"),
    ("wattlock fs passwd --passphrase-file old.txt", f"echo one >old.txt; echo two >new.txt; {PHRASE} old.txt VOLUME"),
    ("wattlock fs passwd", f"echo correct horse >old.txt; {PHRASE} old.txt VOLUME"),
    ("wattlock fs cp -i key.txt VOLUME notes.txt", "rm notes.txt"),
    ("wattlock mount --passphrase-file pass.txt", f"echo correct horse >pass.txt; {PHRASE} pass.txt VOLUME"),
    ("wattlock umount", MOUNTED),
    ("wattlock fs status", MOUNTED),
    ("wattlock fs set", MOUNTED),
    ("wattlock stream open -i key.txt <", "seq 1000 | wattlock stream seal -R team.txt >numbers.sealed"),
    ("wattlock stream keys rewrap", f"{KEYS} && cp key.txt old.txt"),
    ("wattlock stream keys new", "true"),
    ("wattlock stream keys", KEYS),
    ("wattlock nginx disable", "wattlock nginx enable"),
    ("sudo wattlock nginx disable", "wattlock nginx enable && nginx"),
    ("wattlock nginx check", f"wattlock nginx enable && echo '{STATUS}'"
     " >/etc/nginx/conf.d/status.conf && nginx"),
    ("wattlock openssl check", "wattlock openssl enable --yes"),
    ("wattlock openssl disable", "wattlock openssl enable --yes"),
    ("sudo wattlock openssl disable", "wattlock openssl enable --yes"),
    ("wattlock serve /srv/www", "mkdir /srv/www"),
    ("sudo wattlock serve --compare", "cd /etc/nginx/conf.d && openssl req -x509 -nodes -newkey rsa:2048 -subj /CN=own"
     f" -out own.pem -keyout own.key && echo '{SECURE}' >status.conf"),
]
# Puts back what an example changed in the copies of the system's files.
AFTER = """
fusermount3 -uz MOUNTPOINT; nginx -s stop; rm -f /etc/nginx/conf.d/status.conf /etc/nginx/conf.d/own.*
wattlock nginx disable; wattlock haproxy disable --yes; wattlock openssl disable --yes
"""
# Lines that go on until they are interrupted.
ENDLESS = re.compile(r"--watch|wattlock exporter(?! --once)|wattlock top(?!.*--once)|wattlock serve (?!.*--compare)|^tail -f|stream open .*--listen")


def prepare(desk, line):
    for beginning, before in BEFORE:
        if line.startswith(beginning):
            status, shown = run(before, desk.home, desk.environment)
            if status != 0:
                print(f"    | before it, {before!r} failed with {status}: {shown}")
            return


def inside(folder):
    """In namespaces of mounts and network: copies of what lines may change, and a loopback device."""
    for place in ("/etc", "/run", "/var/log"):
        copy = folder / "copies" / place.strip("/").replace("/", "-")
        copy.parent.mkdir(exist_ok=True)
        subprocess.run(["cp", "-a", "--one-file-system", place, str(copy)], check=False, stderr=subprocess.DEVNULL)
        subprocess.run(["mount", "--bind", str(copy), place], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "srv", "/srv"], check=True)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh", b"lo", 1 | 0x40))  # SIOCSIFFLAGS: IFF_UP, IFF_RUNNING


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wattlock", default=os.environ.get("WATTLOCK", "target/release/wattlock"))
    parser.add_argument("--minutes", action="store_true")
    parser.add_argument("what", choices=["readme", "help", "marks"])
    parser.add_argument("words", nargs="*")
    arguments = parser.parse_args()
    if arguments.what == "marks":
        for line, need in blocks((REPOSITORY / "README.md").read_text()):
            if need:
                print(f"{need:8} {line}")
        return 0
    if os.geteuid() == 0 and not os.environ.get("TYPED_INSIDE"):
        with tempfile.TemporaryDirectory(prefix="typed-", ignore_cleanup_errors=True) as folder:
            able = subprocess.run(["unshare", "--mount", "--net", "true"], stderr=subprocess.DEVNULL).returncode == 0
            if able:
                command = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable]
                environment = os.environ | {"TYPED_INSIDE": "1", "TYPED_FOLDER": folder}
                return subprocess.run([*command, *sys.argv], env=environment).returncode
    if os.environ.get("TYPED_INSIDE"):
        inside(pathlib.Path(os.environ["TYPED_FOLDER"]))
    desk = Desk(arguments)
    os.environ["PATH"] = desk.environment["PATH"]
    return readme(desk) if arguments.what == "readme" else help_examples(desk, arguments.words)


if __name__ == "__main__":
    sys.exit(main())
