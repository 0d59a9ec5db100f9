#!/usr/bin/env python3
"""When each check last ran, for SECURITY.md, from docs/measurements/checks/*.json.

    scripts/test/security.py                        write the table between SECURITY.md's two `checks` marks
    scripts/test/security.py --check                write nothing; exit code 1 where the table is not what the data gives
    scripts/test/security.py --keep NAME COMMAND RESULT [NOTE]
                                               keep a run of today on this machine and this commit as NAME.json, then write
    --root DIR                                 another tree than this one

A check is one file. It has `command`, `commit` (short; `+` after it: the tree had changes), `date`, `cpu`, `result` (one sentence
with its figures) and, where a reader must know more, `note`. Each NAME that SECURITY.md refers to as `check:NAME` must have a file.
"""
import argparse
import datetime
import json
import re
import subprocess
import sys
from pathlib import Path

BEGIN, END = "<!-- checks:begin -->", "<!-- checks:end -->"
WORDS = ("command", "commit", "date", "cpu", "result")


def checks(folder):
    """Name and content of every file."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        one = json.loads(path.read_text())
        missing = [word for word in WORDS if not (isinstance(one.get(word), str) and one[word])]
        if missing:
            sys.exit(f"{path.name}: no {', '.join(missing)}")
        if not re.fullmatch(r"[0-9a-f]{7,40}\+?", one["commit"]):
            sys.exit(f"{path.name}: no commit")
        datetime.date.fromisoformat(one["date"])
        found[path.stem] = one
    return found


def table(found, root):
    def cell(text):
        return text.replace("|", "\\|").replace("\n", " ")

    def today(command):
        """The command as it is called now: a script may have moved since it was kept."""
        script, blank, rest = command.partition(" ")
        there = sorted((root / "scripts").glob(f"*/{Path(script).name}"))
        return f"{there[0].relative_to(root)}{blank}{rest}" if there and not (root / script).exists() else command

    lines = ["| check | command | last run | on | result |", "|---|---|---|---|---|"]
    for name, one in found.items():
        result = one["result"] + (f" ({one['note']})" if one.get("note") else "")
        lines.append(f"| {name} | `{cell(today(one['command']))}` | {one['date']}, {one['commit']} | {cell(one['cpu'])} | {cell(result)} |")
    return "\n".join(lines)


def page(text, found, root):
    """The page with its table anew."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        sys.exit("SECURITY.md: not one table between its marks")
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    named = set(re.findall(r"`check:([a-z0-9-]+)`", head + tail))
    if named - set(found):
        sys.exit(f"SECURITY.md names checks that no file has: {', '.join(sorted(named - set(found)))}")
    if set(found) - named:
        sys.exit(f"checks that SECURITY.md does not refer to: {', '.join(sorted(set(found) - named))}")
    return f"{head}{BEGIN}\n\n{table(found, root)}\n\n{END}{tail}"


def run_of(root, command, result, note):
    """A run of today on this machine and this commit, as it is kept."""
    def git(*words):
        return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True).stdout.strip()

    changed = "+" if git("status", "--porcelain", "--untracked-files=no") else ""
    cpus = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M) or ["unknown"]
    has = Path("/proc/cpuinfo").read_text()
    ifma = "AVX-512" if re.search(r"\bavx512ifma\b", has) else "AVX2" if re.search(r"\bavx2\b", has) else "no AVX2"
    one = {"command": command, "commit": git("rev-parse", "--short", "HEAD") + changed,
           "date": datetime.date.today().isoformat(), "cpu": f"{cpus[0]}, {ifma}, {len(cpus)} cores", "result": result}
    if note:
        one["note"] = note
    return one


def keep(root, name, command, result, note):
    folder = root / "docs/measurements/checks"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(run_of(root, command, result, note), indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--keep", nargs="+", metavar="WORD")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent.parent)
    words = parser.parse_args()
    if words.keep:
        if len(words.keep) not in (3, 4):
            parser.error("--keep NAME COMMAND RESULT [NOTE]")
        keep(words.root, *(words.keep + [None])[:4])
    path = words.root / "SECURITY.md"
    text = path.read_text()
    now = page(text, checks(words.root / "docs/measurements/checks"), words.root)
    if words.check:
        if now != text:
            sys.exit("SECURITY.md does not say what docs/measurements/checks has: run scripts/test/security.py")
    elif now != text:
        path.write_text(now)


if __name__ == "__main__":
    main()
