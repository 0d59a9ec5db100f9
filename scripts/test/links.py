#!/usr/bin/env python3
"""Links between pages: every relative link of a Markdown file names a file that is there, and its anchor a heading.

    scripts/test/links.py [FOLDER]

Prints what leads nowhere and exits with 1 if there is anything."""

import pathlib
import re
import subprocess
import sys

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)", re.S)
FENCE = re.compile(r"^```.*?^```$", re.M | re.S)


def anchors(text):
    """Of each heading as GitHub makes them: small letters, spaces as hyphens, no punctuation; `-1` at a second one."""
    seen = {}
    for line in FENCE.sub("", text).splitlines():
        heading = re.match(r"#{1,6} +(.*)", line)
        if heading:
            words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).lower()
            name = re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")
            count = seen[name] = seen.get(name, -1) + 1
            yield name if count == 0 else f"{name}-{count}"


def dead(root):
    """Pairs of a page and a link in it that leads nowhere."""
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=root, check=True, capture_output=True, text=True).stdout
    pages = {name: (root / name).read_text() for name in listed.split("\n") if name and (root / name).exists()}
    for name, text in pages.items():
        for link in LINK.findall(FENCE.sub("", text)):
            if re.match(r"[a-z+]+:", link):
                continue
            path, _, anchor = link.partition("#")
            target = (root / name).parent.joinpath(path).resolve() if path else (root / name).resolve()
            if not target.exists():
                yield name, link
            elif anchor and target.suffix == ".md" and anchor not in anchors(target.read_text()):
                yield name, link


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent.parent).resolve()
    found = list(dead(root))
    for name, link in found:
        print(f"{name}: {link} leads nowhere", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
