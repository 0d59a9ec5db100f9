#!/usr/bin/env python3
"""Every relative link and every #anchor of every Markdown page of a repository leads somewhere.

    scripts/links.py [FOLDER]     exit code 1, and a line for each link that does not
"""
import re
import subprocess
import sys
from pathlib import Path


def anchors(page):
    """The anchors of a page's headings, as code hosts make them."""
    found, code = {}, False
    for line in page.read_text().splitlines():
        code ^= line.lstrip().startswith("```")
        heading = re.match(r"#{1,6} +(.*?) *$", line)
        if code or not heading:
            continue
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading[1]).lower()
        name = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        found[name] = found.get(name, -1) + 1
    return {name if not count else f"{name}-{count}" for name, most in found.items() for count in range(most + 1)}


def links(page):
    """Line number and target of each link outside code."""
    text = re.sub(r"```.*?```", lambda m: "\n" * m[0].count("\n"), page.read_text(), flags=re.S)
    text = re.sub(r"`[^`\n]*`", "``", text)
    for link in re.finditer(r"\]\(([^)\s]+)\)", text):
        yield text.count("\n", 0, link.start()) + 1, link[1]


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent)
    listed = subprocess.run(["git", "-C", str(root), "ls-files", "-z", "--", "*.md"], capture_output=True, check=True)
    wrong = 0
    for name in filter(None, listed.stdout.decode().split("\0")):
        page = root / name
        for line, target in links(page) if page.exists() else ():
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            to = page if not path else page.parent / path
            if not to.exists() or (anchor and to.suffix == ".md" and anchor not in anchors(to)):
                print(f"{name}:{line}: {target}")
                wrong += 1
    if wrong:
        sys.exit("the links above lead nowhere")


if __name__ == "__main__":
    main()
