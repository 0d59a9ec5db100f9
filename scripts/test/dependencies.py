#!/usr/bin/env python3
"""Checks every crate we depend on: its licence against a list, and, where the RustSec advisory database is at hand,
its version against known vulnerabilities.

The database is looked for in ADVISORY_DB, then where cargo-audit and cargo-deny keep it, then cloned if the network
allows. Without it the check says so and the licence check still decides; a machine without the network must be able
to pass. Exceptions are listed here with their reasons.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

try:
    import tomllib
except ImportError:  # Python before 3.11
    tomllib = None

ALLOWED = {
    "0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "ISC",
    "MIT", "MIT-0", "NCSA", "OpenSSL", "Unicode-3.0", "Unicode-DFS-2016", "Unlicense", "Zlib",
}
# Advisory: why it does not concern us.
ACCEPTED = {
    "RUSTSEC-2023-0071": "rsa: timing of private-key operations. Reached only through age's ssh-rsa identities, when a "
    "person opens a file on their own machine; no server of ours uses it.",
}


def permitted(expression):
    """Whether an SPDX expression can be met with allowed licences."""
    expression = expression.replace("/", " OR ")
    tokens = re.findall(r"\(|\)|AND|OR|[^\s()]+(?:\s+WITH\s+[^\s()]+)?", expression)
    position = 0

    def parse_or():
        nonlocal position
        value = parse_and()
        while position < len(tokens) and tokens[position] == "OR":
            position += 1
            value = parse_and() or value
        return value

    def parse_and():
        nonlocal position
        value = parse_one()
        while position < len(tokens) and tokens[position] == "AND":
            position += 1
            value = parse_one() and value
        return value

    def parse_one():
        nonlocal position
        token = tokens[position]
        position += 1
        if token == "(":
            value = parse_or()
            position += 1
            return value
        return token in ALLOWED

    return parse_or()


def packages():
    seen = {}
    for manifest in ("Cargo.toml", "fuzz/Cargo.toml", "crates/wattlock-bridge/Cargo.toml"):
        command = ["cargo", "metadata", "--format-version", "1", "--locked", "--manifest-path", manifest]
        data = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for package in data["packages"]:
            if package["source"]:
                seen[package["name"], package["version"]] = package
    return seen.values()


def version_key(text):
    numbers, _, pre = text.partition("+")[0].partition("-")
    parts = [int(part) for part in re.findall(r"\d+", numbers)][:3]
    parts += [0] * (3 - len(parts))
    return (parts, pre == "", pre)


def satisfies(version, requirement):
    """Cargo's comparison requirements as RustSec uses them: '>= 1.2.3, < 2', '^1.2', '= 1.0.0'."""
    for part in requirement.split(","):
        match = re.match(r"\s*(>=|<=|>|<|=|\^|~)?\s*([0-9][^\s,]*)", part)
        if not match:
            return False
        operator, bound = match.group(1) or "^", match.group(2)
        mine, theirs = version_key(version), version_key(bound)
        given = [int(part) for part in re.findall(r"\d+", bound.partition("-")[0])][:3]
        upper = list(given)
        if operator == "^":
            at = next((i for i, n in enumerate(given) if n), len(given) - 1)
            upper = given[: at + 1]
            upper[at] += 1
        if operator == "~":
            at = min(1, len(given) - 1)
            upper = given[: at + 1]
            upper[at] += 1
        holds = {
            ">=": mine >= theirs, "<=": mine <= theirs, ">": mine > theirs, "<": mine < theirs, "=": mine == theirs,
        }.get(operator)
        if holds is None:
            holds = theirs <= mine < (upper + [0] * (3 - len(upper)), True, "")
        if not holds:
            return False
    return True


def database(scratch):
    home = pathlib.Path(os.environ.get("CARGO_HOME", pathlib.Path.home() / ".cargo"))
    places = [os.environ.get("ADVISORY_DB"), home / "advisory-db"]
    places += sorted((home / "advisory-dbs").glob("*")) if (home / "advisory-dbs").is_dir() else []
    for place in filter(None, places):
        if (pathlib.Path(place) / "crates").is_dir():
            return pathlib.Path(place)
    clone = ["git", "clone", "--quiet", "--depth", "1", "https://github.com/rustsec/advisory-db", scratch]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": {**os.environ, "GIT_TERMINAL_PROMPT": "0"}}
    try:
        done = subprocess.run(clone, timeout=60, check=False, **quiet).returncode == 0
    except (subprocess.TimeoutExpired, OSError):
        done = False
    return pathlib.Path(scratch) if done else None


def advisories(root, package):
    for path in sorted((root / "crates" / package["name"]).glob("RUSTSEC-*.md")):
        front = re.search(r"```toml\n(.*?)```", path.read_text(encoding="utf-8"), re.S)
        if not front:
            continue
        data = tomllib.loads(front.group(1))
        known, versions = data["advisory"], data.get("versions", {})
        if known.get("withdrawn") or known.get("informational") in ("unmaintained", "notice"):
            continue
        fixed = versions.get("patched", []) + versions.get("unaffected", [])
        if not any(satisfies(package["version"], requirement) for requirement in fixed):
            yield known["id"], re.sub(r"\s+", " ", path.read_text(encoding="utf-8").split("# ", 1)[-1].split("\n")[0])


def main():
    failed = False
    found = list(packages())
    for package in found:
        licence = package["license"] or ""
        if not licence or not permitted(licence):
            print(f"licence: {package['name']} {package['version']}: {licence or 'none stated'}")
            failed = True
    print(f"licences: {len(found)} packages looked at")
    if tomllib is None:
        print("advisories: not checked (needs Python 3.11)")
        return failed
    with tempfile.TemporaryDirectory() as scratch:
        root = database(os.path.join(scratch, "db"))
        if root is None:
            print("advisories: not checked (no advisory database here, and none could be fetched; set ADVISORY_DB)")
            return failed
        for package in found:
            for identifier, title in advisories(root, package):
                reason = ACCEPTED.get(identifier)
                print(f"advisory: {package['name']} {package['version']}: {identifier}: {title}")
                print(f"    accepted: {reason}" if reason else "    NOT ACCEPTED")
                failed |= reason is None
        print(f"advisories: {len(found)} packages looked at")
    return failed


if __name__ == "__main__":
    sys.exit(main())
