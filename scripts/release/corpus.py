#!/usr/bin/env python3
"""The corpus: what a version wrote, which every later version opens (docs/design/compatibility.md).

    corpus.py make WATTLOCK SEAL_RECORDS      make corpus/X.Y of the version X.Y.Z of this program `wattlock`
    corpus.py check                           every piece is there, unchanged, and named by its MANIFEST.json

SEAL_RECORDS is the example of that name of `wattlock-stream`, since topics would need a broker. `make` needs root for
/dev/fuse, GNU tar and ssh-keygen, and some megabytes in TMPDIR. It replaces the folder of its own version as long as no
tag says that the version was released, and never touches another one. Salts and keys are new each time.

MANIFEST.json has the version, the commit, and for each piece `file`, `sha256`, `made` (the commands), `kind` (how
crates/wattlock-cli/tests/all/corpus opens it), and what that kind needs and what must come out.
"""

import argparse
import gzip
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CORPUS = ROOT / "corpus"
MANIFEST = "MANIFEST.json"
MARK = "# TEST KEY of Wattlock's corpus: everybody has it, and it protects nothing\n"
PASSPHRASE = "a passphrase of the corpus"
# For volumes only: the tests open them often. Sealed files always take 18.
WORK_FACTOR = "6"
# An ordinary tar. Holes stay holes; times keep their nanoseconds; nothing of the user who made it is in it.
TAR = ["tar", "--create", "--format=posix", "--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--sparse",
       "--hole-detection=raw", "--xattrs", "--xattrs-include=user.*", "--blocking-factor=1",
       "--pax-option=delete=atime,delete=ctime,exthdr.name=%d/%f.pax"]


def content(length):
    """Bytes that neither repeat soon nor resist compression."""
    return bytes((i ^ i >> 7 ^ (i >> 13) * 31) & 255 for i in range(length))


def digest(data):
    return hashlib.sha256(data).hexdigest()


class Maker:
    """One corpus, in a folder of its own until it is whole."""

    def __init__(self, wattlock, records, place):
        self.wattlock, self.records, self.place = wattlock, records, place
        self.out, self.pieces, self.said = place / "corpus", [], []
        self.out.mkdir()
        self.variables = {"WATTLOCK_PROFILE": str(place / "profile.json"),
                          "WATTLOCK_TELEMETRY_DIR": str(place / "telemetry"),
                          "WATTLOCK_STATE_DIR": str(place / "state")}
        (place / "words").write_text(PASSPHRASE + "\n")

    def run(self, *words, stdin=b"", code=0, noted=True, **variables):
        """The program's standard output."""
        if noted:
            self.said.append(shlex.join(["wattlock", *words]))
        done = subprocess.run([self.wattlock, *words], input=stdin, capture_output=True, cwd=self.place,
                              env={**os.environ, **self.variables, **variables})
        if done.returncode != code:
            sys.exit(f"corpus: wattlock {' '.join(words)}: {done.returncode}: {done.stderr.decode()}")
        return done.stdout

    def piece(self, name, kind, data=None, **more):
        """Takes a file of the working folder, or these bytes, with the commands since the last piece."""
        to = self.out / name
        to.parent.mkdir(parents=True, exist_ok=True)
        if data is None:
            shutil.copyfile(self.place / name, to)
        else:
            to.write_bytes(data)
        assert self.said, f"{name}: made by nothing"
        self.pieces.append({"file": name, "sha256": digest(to.read_bytes()), "made": self.said, "kind": kind, **more})
        self.said = []

    def mark(self, name):
        """Says of a key file that it is for tests; returns what it has then."""
        path = self.place / name
        text = MARK + path.read_text()
        path.write_text(text)
        self.said.append("a line in front")
        return text

    def kept(self, name, data):
        """A file of the working folder that is no piece."""
        path = self.place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    def keys(self):
        for name in ("key", "second"):
            (self.place / "keys").mkdir(exist_ok=True)
            self.run("keygen", "-o", f"keys/{name}.txt")
            self.mark(f"keys/{name}.txt")
            self.piece(f"keys/{name}.txt", "identity")
        for name, kind in (("ssh_ed25519", "ed25519"), ("ssh_rsa", "rsa")):
            words = ["ssh-keygen", "-q", "-t", kind, *(["-b", "2048"] if kind == "rsa" else []), "-N", "",
                     "-C", "TEST KEY of Wattlock's corpus", "-f", f"keys/{name}"]
            subprocess.run(words, cwd=self.place, check=True)
            self.said = [shlex.join(words)]
            self.piece(f"keys/{name}", "identity")
            self.said = [f"with keys/{name}"]
            self.piece(f"keys/{name}.pub", "recipients", identity=f"keys/{name}")
        self.recipient = re.search("age1.*", (self.place / "keys/key.txt").read_text())[0]
        self.second = re.search("age1.*", (self.place / "keys/second.txt").read_text())[0]
        self.kept("keys/recipients.txt", f"{MARK}{self.recipient}\n\n{self.second}\n".encode())
        self.said = ["the recipients of keys/key.txt and keys/second.txt, and an empty line between them"]
        self.piece("keys/recipients.txt", "recipients", identity="keys/second.txt")
        # Where commands look for a key if none is given.
        config = {"HOME": str(self.place), "XDG_CONFIG_HOME": str(self.place / "default")}
        (self.place / "default").mkdir(0o700)
        self.run("keygen", "--default", **config)
        self.mark("default/wattlock/identity.txt")
        self.piece("default/wattlock/identity.txt", "default")
        self.said = ["with default/wattlock/identity.txt"]
        self.piece("default/wattlock/recipients.txt", "default")
        self.kept("a", b"with the default key\n")
        self.run("seal", "-q", "-o", "default.sealed", "a", **config)
        self.piece("files/default.sealed", "file", (self.place / "default.sealed").read_bytes(),
                   identities=["default/wattlock/identity.txt"], bytes=21, clear=digest(b"with the default key\n"))

    def sealed(self, name, clear, *words, identities=("keys/key.txt",), **more):
        """A sealed file, from a file of this content."""
        self.kept("content", clear)
        self.run("seal", "-q", *words, "-o", "sealed", "content")
        given = {} if "passphrase" in more else {"identities": list(identities)}
        self.piece(f"files/{name}", "file", (self.place / "sealed").read_bytes(), bytes=len(clear), clear=digest(clear),
                   **given, **more)
        os.remove(self.place / "sealed")

    def files(self):
        to, both = ["-r", self.recipient], ["-R", "keys/recipients.txt"]
        # The format's chunks have 16384 bytes.
        for length in (0, 1, 16383, 16384, 16385):
            self.sealed(f"{length}.sealed", content(length), *to)
        self.sealed("two.sealed", b"to two\n", *both, identities=("keys/key.txt", "keys/second.txt"))
        ssh = [word for name in ("ssh_ed25519", "ssh_rsa") for word in ("-R", f"keys/{name}.pub")]
        self.sealed("ssh.sealed", b"to ssh's keys\n", *ssh, identities=("keys/ssh_ed25519", "keys/ssh_rsa"))
        self.sealed("armor.sealed.asc", content(1000), "--armor", *to)
        for level in (1, 9):
            self.sealed(f"level-{level}.gz.sealed", content(3000), f"--gzip={level}", *to, gzip=True)
        words = ["--passphrase-file", "words"]
        self.sealed("passphrase.sealed", b"by passphrase\n", *words, passphrase=PASSPHRASE)
        # What protects an identity with a passphrase.
        self.sealed("locked-key.age", (self.place / "keys/second.txt").read_bytes(), "--format", "age", *words,
                    passphrase=PASSPHRASE)
        # age's chunks have 65536 bytes.
        for length in (0, 65537):
            self.sealed(f"{length}.age", content(length), "--format", "age", *to)
        self.sealed("armor.age", content(1000), "--format", "age", "--armor", *both,
                    identities=("keys/second.txt",))
        piped = self.run("seal", "-q", *to, "-o", "-", stdin=b"from a pipe\n")
        self.piece("files/pipe.sealed", "file", piped, identities=["keys/key.txt"], bytes=12,
                   clear=digest(b"from a pipe\n"))

    def stream(self, name, clear, *words, cut=None, **more):
        sealed = self.run("stream", "seal", "-r", self.recipient, *words, stdin=clear)
        self.piece(f"streams/{name}.stream", "stream", sealed[:cut], identities=["keys/key.txt"], bytes=len(clear),
                   clear=digest(clear), **more)
        return sealed

    def streams(self):
        lines = "".join(f"line {i} {'x' * (i % 50)}\n" for i in range(40)).encode()
        records = b"".join(length.to_bytes(4, "big") + content(length) for length in (0, 1, 1000, 300))
        one = self.stream("empty", b"")
        self.stream("raw", content(3000), "--frame", "1KiB")
        self.stream("full-frames", content(2048), "--frame", "1KiB")
        self.stream("lines", lines, "--framing", "lines", "--latency", "0")
        self.stream("length", records, "--framing", "length")
        self.stream("keys", content(3000), "--frame", "500", "--rekey-after", "1000")
        two = self.run("stream", "seal", "-R", "keys/recipients.txt", stdin=b"a second one\n")
        self.said += ["between two of the stream `empty`"]
        self.piece("streams/joined.stream", "stream", one + two + one, identities=["keys/key.txt"], joined=True,
                   bytes=13, clear=digest(b"a second one\n"))
        # What a kill leaves: whole frames are a true beginning. A half frame and the end are missing.
        sealed = self.run("stream", "seal", "-r", self.recipient, "--frame", "1KiB", stdin=content(3072))
        self.said.append("cut in the third frame")
        clear = content(2048)
        self.piece("streams/cut.stream", "stream", sealed[:304 + 2 * 1044 + 500], identities=["keys/key.txt"], code=36,
                   bytes=len(clear), clear=digest(clear))

    def topic(self, name, key, records, *options, only=None, **more):
        """Records that the example sealed; with `only`, those that a compaction left. `clear` is what corpus/topics.rs
        says of them."""
        text = "".join(json.dumps(record) + "\n" for record in records).encode()
        words = ["keys/key.txt", "topics/keys", key, "orders", "3", *options]
        done = subprocess.run([self.records, *words], input=text, cwd=self.place, capture_output=True, check=True)
        self.said.append(shlex.join(["seal_records", *words]))
        lines = done.stdout.splitlines(keepends=True)
        if only:
            lines, records = [lines[i] for i in only], [records[i] for i in only]
            self.said.append(f"of these the records {', '.join(map(str, only))}")

        def shown(part):
            return "-" if part is None else "=" + part

        clear = "".join(
            " ".join([shown(record["key"]), shown(record["value"]),
                      *(header + shown(value) for header, value in record["headers"])]) + "\n"
            for record in records).encode()
        self.piece(f"topics/{name}.records", "topic", b"".join(lines), topic="orders", keys="topics/keys",
                   identities=["keys/key.txt"], bytes=len(clear), clear=digest(clear), **more)

    def topics(self):
        self.run("stream", "keys", "signer", "-o", "keys/signer.txt")
        name = re.search("ed25519:[0-9a-f]{64}", self.mark("keys/signer.txt"))[0]
        self.piece("keys/signer.txt", "signer", signer=name)

        def key(label, *words, **more):
            made = self.run("stream", "keys", "new", "--keys", "topics/keys", "-r", self.recipient, "--label", label,
                            *words).decode().strip()
            if label == "rewrapped":
                self.run("stream", "keys", "rewrap", "--keys", "topics/keys", "-i", "keys/key.txt", "-R",
                         "keys/recipients.txt", made)
            self.piece(f"topics/keys/{made}.key", "entry", identities=["keys/key.txt"], label=label, **more)
            return made

        (self.place / "topics").mkdir()
        orders, names = key("orders"), key("names")
        signed, rewrapped = key("signed", "--sign", "keys/signer.txt", signer=name), key("rewrapped")
        headers = [["type", b"order".hex()], ["trace", b"t1".hex()], ["none", None], ["trace", ""]]

        def record(key, value, time=None, headers=()):
            return {"key": key and key.hex(), "time": time, "value": value if value is None else value.hex(),
                    "headers": list(headers)}

        records = [record(b"k1", b"first"), record(b"k1", b"", -7), record(None, b"no key", 1764264000000),
                   record(b"gone", None), record(b"k2", b"compressible " * 50),
                   record(b"k3", b"with headers", 1, headers), record(b"k3", None, None, headers)]
        self.topic("plain", orders, records)
        self.topic("clear-headers", signed, records, "clear=trace")
        self.topic("packed", rewrapped, records, "compress")
        self.topic("hidden-keys", orders, records, f"names={names}", names=names)
        # From 128 on a record's number takes two bytes.
        self.topic("many", orders, [record(b"k", b"%d" % i) for i in range(130)], only=[0, 127, 128, 129])

    def tree(self, top):
        """What a copy out of a volume must have: every entry below `top`, and `top`."""
        entries, inodes = [], {}
        for path in sorted([top, *top.rglob("*")]):
            meta, one = path.lstat(), {"path": os.fsdecode(path.relative_to(top.parent))}
            one["mode"], one["mtime_ns"] = stat.S_IMODE(meta.st_mode), meta.st_mtime_ns
            if path.is_symlink():
                one.update(kind="link", target=os.readlink(path))
                del one["mode"]
            elif path.is_dir():
                one["kind"] = "folder"
            elif path.is_fifo():
                one["kind"] = "pipe"
            else:
                one.update(kind="file", bytes=meta.st_size, clear=digest(path.read_bytes()))
                if meta.st_nlink > 1:
                    first = inodes.setdefault(meta.st_ino, one["path"])
                    one.update({"same_as": first} if first != one["path"] else {})
            names = [] if path.is_symlink() else os.listxattr(path)
            if names:
                one["attributes"] = {name: os.getxattr(path, name).hex() for name in names}
            entries.append(one)
        return entries

    def volume(self, name, *words, key=True):
        given = ["-r", f"first={self.recipient}"] if key else []
        self.run("fs", "init", *given, *words, name)
        return self.place / name

    def put(self, name, *paths):
        self.run("fs", "cp", "-q", "-r", "--into", "-i", "keys/key.txt", name, *paths, "/")

    def packed(self, name, tree, **more):
        """A volume's folder as a piece."""
        words = [*TAR, name]
        packed = subprocess.run(words, cwd=self.place, check=True, stdout=subprocess.PIPE).stdout
        self.said.append(f"tar --create {name} | gzip")
        more.setdefault("identities", ["keys/key.txt"])
        self.piece(f"volumes/{name}.tar.gz", "volume", gzip.compress(packed, 9, mtime=0), tree=tree, **more)

    def sample(self):
        """A folder with everything that a volume keeps and any user may make."""
        top = self.place / "all"
        (top / "deep/er").mkdir(parents=True)
        for length in (0, 1, 4095, 4096, 4097):
            (top / f"{length}").write_bytes(content(length))
        (top / "deep/er/ü — ☂").write_bytes(b"a name in UTF-8\n")
        (top / ("n" * 255)).write_bytes(b"the longest name\n")
        (top / ("d" * 200)).mkdir()
        (top / ("d" * 200) / "in").write_bytes(b"in a folder with a long name\n")
        os.link(top / "4097", top / "deep/hard")
        os.symlink("deep/er", top / "link")
        os.symlink("../" * 100 + "nowhere", top / "long-link")
        os.mkfifo(top / "pipe", 0o640)
        with open(top / "holes", "wb") as file:
            file.truncate(5 << 20)
            file.seek(3 << 20)
            file.write(b"between two holes")
        os.chmod(top / "1", 0o400)
        os.chmod(top / "4095", 0o2755)
        os.setxattr(top / "0", "user.note", b"an attribute")
        os.setxattr(top / "deep", "user." + "n" * 164, content(100))
        for number, path in enumerate(sorted([top, *top.rglob("*")], reverse=True)):
            when = 1_700_000_000_123_456_789 + number * 1_000_000_001
            os.utime(path, ns=(when, when), follow_symlinks=False)
        return top

    def volumes(self):
        top = self.sample()
        volume = self.volume("folder")
        self.run("fs", "key", "add", "-i", "keys/key.txt", "--new-passphrase-file", "words", "--work-factor",
                 WORK_FACTOR, "folder")
        ssh = (self.place / "keys/ssh_ed25519.pub").read_text().strip()
        self.run("fs", "key", "add", "-i", "keys/key.txt", "-r", ssh, "--name", "ssh", "folder")
        self.put("folder", "all")
        self.packed("folder", self.tree(top), identities=["keys/key.txt", "keys/ssh_ed25519"], passphrase=PASSPHRASE)

        small = self.place / "small"
        (small / "sub").mkdir(parents=True)
        (small / "sub/4097").write_bytes(content(4097))
        (small / "sub/wattlock.notes").write_bytes(b"a name that a plain volume changes\n")
        (small / ("m" * 230)).write_bytes(b"a long name\n")
        os.symlink("sub", small / "link")
        self.volume("deterministic", "--names", "deterministic", "--chunk", "16K")
        self.put("deterministic", "small")
        self.packed("deterministic", self.tree(small))
        self.volume("plain", "--names", "plain", "--chunk", "64K")
        self.put("plain", "small")
        self.packed("plain", self.tree(small))

        large = self.place / "large"
        large.mkdir()
        with open(large / "hole and end", "wb") as file:
            file.truncate(4 << 18)
            file.seek(4 << 18)
            file.write(b"the last chunk")
        self.volume("large-chunks", "--chunk", "256K")
        self.put("large-chunks", "large")
        self.packed("large-chunks", self.tree(large))

        self.recovery(small)
        self.copies()
        self.rotated()
        self.half_rotated()
        self.crashed()

    def recovery(self, small):
        """A volume whose only other key is the one for paper, and whose key of before was removed."""
        printed = self.run("fs", "init", "-r", f"first={self.recipient}", "--recovery", "recovery").decode()
        secret = re.search("AGE-SECRET-KEY-1[A-Z0-9]+", printed)[0]
        self.put("recovery", "small")
        self.piece("keys/recovery.txt", "identity", (MARK + printed).encode())
        self.kept("keys/recovery.txt", (secret + "\n").encode())
        self.run("fs", "key", "remove", "-i", "keys/recovery.txt", "recovery", "first")
        self.packed("recovery", self.tree(small), identities=["keys/recovery.txt"])

    def copies(self):
        """A conflicting copy, as a program that synchronises folders makes it."""
        one = self.place / "notes"
        one.mkdir()
        (one / "doc").write_bytes(b"mine\n")
        volume = self.volume("copies")
        self.put("copies", "notes")
        [stored] = [path for path in volume.rglob("*") if path.is_file() and "wattlock." not in path.name]
        theirs = stored.with_name(stored.name + " (conflicted copy)")
        shutil.copy2(stored, theirs)
        self.said.append("cp -p of the backing file of /notes/doc, with ` (conflicted copy)` behind its name")
        tree = self.tree(one)
        [doc] = [entry for entry in tree if entry["path"] == "notes/doc"]
        tree.append({**doc, "path": "notes/doc [conflict (conflicted copy)]"})
        for entry in tree:
            # The folder of the copy is not the folder that was copied.
            if entry["kind"] == "folder":
                del entry["mtime_ns"]
        self.packed("copies", tree)

    def rotated(self):
        """A volume before and after the removal of a key, and what a machine knows of it that did that."""
        self.volume("rotated")
        self.run("fs", "key", "add", "-i", "keys/key.txt", "-r", self.second, "--name", "second", "rotated")
        self.put("rotated", "small")
        tree = self.tree(self.place / "small")
        shutil.copytree(self.place / "rotated", self.place / "before-rotation", symlinks=True)
        self.said.append("cp -a rotated before-rotation")
        self.packed("before-rotation", tree, identities=["keys/key.txt", "keys/second.txt"])
        self.run("fs", "key", "rotate", "-i", "keys/key.txt", "--remove", "second", "rotated")
        # Modification times of files move on by two seconds.
        for entry in tree:
            if entry["kind"] != "link":
                del entry["mtime_ns"]
        self.packed("rotated", tree)
        self.run("fs", "ls", "-i", "keys/key.txt", "rotated", noted=False)
        self.said = ["what the commands before this one left in the state folder"]
        lines = (self.place / "state/volumes").read_text().splitlines()
        known = [lines[0], *(line for line in lines if line.endswith("/rotated"))]
        self.piece("state/volumes", "known", "".join(line + "\n" for line in known).encode(),
                   older="volumes/before-rotation.tar.gz", newer="volumes/rotated.tar.gz", identities=["keys/key.txt"])

    def half_rotated(self):
        """A rotation that met a damaged file, which came back from a backup: keys of two generations are in use."""
        volume = self.volume("half-rotated")
        self.put("half-rotated", "small")
        stored = max((path for path in volume.rglob("*") if path.is_file() and "wattlock" not in path.name),
                     key=lambda path: path.stat().st_size)
        good, meta = stored.read_bytes(), stored.stat()
        stored.write_bytes(good[:40] + bytes([good[40] ^ 1]) + good[41:])
        self.said.append("one bit of a file's header was changed")
        self.run("fs", "key", "rotate", "-i", "keys/key.txt", "half-rotated", code=83)
        stored.write_bytes(good)
        os.utime(stored, ns=(meta.st_atime_ns, meta.st_mtime_ns))
        self.said.append("and changed back")
        tree = self.tree(self.place / "small")
        for entry in tree:
            if entry["kind"] != "link":
                del entry["mtime_ns"]
        self.packed("half-rotated", tree)

    def crashed(self):
        """A mount was killed when its journal had acknowledged replacements that were not in place."""
        before = self.place / "diary"
        before.mkdir()
        (before / "kept").write_bytes(content(5000))
        self.volume("crashed")
        self.put("crashed", "diary")
        content_now, states = content(5000), []

        def state():
            """As the volume is now; the journal sets times."""
            tree = self.tree(before)
            for entry in tree:
                entry.pop("mtime_ns")
                if entry["kind"] == "file":
                    entry["clear"] = digest(content_now)
            states.append(tree)

        state()
        mounted = self.place / "mnt"
        mounted.mkdir()
        self.run("mount", "-i", "keys/key.txt", "crashed", "mnt")
        with open(mounted / "diary/kept", "r+b", buffering=0) as file:
            for at in (4000, 100):
                file.seek(at)
                file.write(b"replaced" * 100)
                os.fsync(file)
                content_now = content_now[:at] + b"replaced" * 100 + content_now[at + 800:]
                state()
        status = self.run("fs", "status", "mnt", noted=False).decode()
        process = int(re.search(r"^process (\d+)", status, re.M)[1])
        os.kill(process, signal.SIGKILL)
        subprocess.run(["umount", "-l", mounted], check=True)
        while Path(f"/proc/{process}").exists():
            time.sleep(0.01)
        self.said.append("800 bytes of /diary/kept were replaced and synced, twice; the mount was killed at once")
        self.packed("crashed", states.pop(), before=states)

    def outputs(self):
        """What scripts read, of pieces of this corpus: every field that is here stays as it is."""
        lists = [("sums.sha256", []), ("sums.sha512", ["-a", "sha512", "--tag"]), ("sums.sha1", ["-a", "sha1"]),
                 ("sums.sha384", ["-a", "sha384", "-b"])]
        names = ["files/0.sealed", "files/16385.sealed", "streams/lines.stream", "volumes/folder.tar.gz"]
        for name, words in lists:
            self.said = [" ".join(["wattlock sum", *words, *names])]
            done = subprocess.run([self.wattlock, "sum", *words, *names], cwd=self.out, capture_output=True, check=True,
                                  env={**os.environ, **self.variables})
            self.piece(f"sums/{name}", "sums", done.stdout, files=len(names), words=words[:2])
        key = ["-i", "keys/key.txt"]
        for name, words, without in [
            ("sum", ["sum", "--json", *names], []),
            ("open", ["open", "--json", *key, "-o", "NEW", "files/16385.sealed"], []),
            ("ls", ["fs", "ls", "--json", *key, "volumes/folder.tar.gz", "all"], ["uid", "gid"]),
            ("key-list", ["fs", "key", "list", "--json", *key, "volumes/folder.tar.gz"], []),
            ("check", ["fs", "check", "--json", *key, "volumes/folder.tar.gz"], []),
        ]:
            with tempfile.TemporaryDirectory() as folder:
                # A volume is unpacked; the command is given its folder.
                shutil.copytree(self.out, f"{folder}/c")
                here, real = Path(folder) / "c", []
                for word in words:
                    if word.endswith(".tar.gz") and words[0] == "fs":
                        subprocess.run(["tar", "--xattrs", "-xpzf", word], cwd=here, check=True)
                        word = Path(word).name.removesuffix(".tar.gz")
                    real.append(word)
                self.said = [" ".join(["wattlock", *real])]
                done = subprocess.run([self.wattlock, *real], cwd=here, capture_output=True, check=True,
                                      env={**os.environ, **self.variables, "WATTLOCK_STATE_DIR": f"{folder}/state"})
            lines = [json.loads(line) for line in done.stdout.splitlines()]
            for line in lines:
                for field in without:
                    line.pop(field, None)
            self.piece(f"lines/{name}.json", "lines", "".join(json.dumps(line) + "\n" for line in lines).encode(),
                       words=words)
        self.piece("lines/exit-codes", "exit-codes", self.run("exit-codes"))

    def finish(self):
        version = self.run("--version", noted=False).decode().split("\n")
        manifest = {"version": version[0].split()[-1], "commit": version[1].split()[-1],
                    "keys": "for tests; everybody has them", "pieces": self.pieces}
        # A line for each piece.
        text = json.dumps({**manifest, "pieces": []}, ensure_ascii=False)
        lines = ",\n".join(json.dumps(piece, ensure_ascii=False) for piece in self.pieces)
        text = text.replace("[]", f"[\n{lines}\n]") + "\n"
        (self.out / MANIFEST).write_text(text)
        return ".".join(manifest["version"].split(".")[:2])


def released(version):
    """Whether a tag of this version, or of a later patch of it, exists."""
    tags = subprocess.run(["git", "-C", ROOT, "tag", "--list", f"v{version}.*"], stdout=subprocess.PIPE, check=True)
    return bool(tags.stdout.strip())


def make(wattlock, records):
    wattlock, records = os.path.abspath(wattlock), os.path.abspath(records)
    os.umask(0o022)
    with tempfile.TemporaryDirectory(prefix="wattlock-corpus-") as place:
        maker = Maker(wattlock, records, Path(place))
        maker.keys()
        maker.files()
        maker.streams()
        maker.topics()
        maker.volumes()
        maker.outputs()
        version = maker.finish()
        to = CORPUS / version
        if released(version):
            sys.exit(f"corpus: {version} was released: {to.name} stays as it is")
        shutil.rmtree(to, ignore_errors=True)
        to.parent.mkdir(exist_ok=True)
        shutil.copytree(maker.out, to)
        for path in to.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
    check()


def check():
    """What needs no program; the tests do the rest."""
    folders = sorted(path for path in CORPUS.iterdir() if path.is_dir())
    for folder in folders:
        manifest = json.loads((folder / MANIFEST).read_text())
        pieces = {piece["file"]: piece["sha256"] for piece in manifest["pieces"]}
        there = {str(path.relative_to(folder)): digest(path.read_bytes()) for path in folder.rglob("*")
                 if path.is_file() and path.name != MANIFEST}
        wrong = sorted(name for name in pieces.keys() | there.keys() if pieces.get(name) != there.get(name))
        if wrong or not pieces:
            sys.exit(f"corpus: {folder.name}: missing, changed or unknown: {', '.join(wrong) or 'everything'}")
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        print(f"{folder.name}: {len(pieces)} pieces, {size} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_subparsers(dest="what", required=True)
    making = what.add_parser("make")
    making.add_argument("wattlock")
    making.add_argument("records")
    what.add_parser("check")
    words = parser.parse_args()
    make(words.wattlock, words.records) if words.what == "make" else check()


if __name__ == "__main__":
    main()
