#!/usr/bin/env bash
# Nothing committed may name a machine's private paths or a package registry's host, or be what a merge left half done.
set -euo pipefail
cd "$(dirname "$0")/.."
words='/work/|/root/|crates\.io/api|index\.crates\.io|static\.crates\.io|pypi\.org|files\.pythonhosted|deb\.debian\.org|registry\.npmjs'
if git grep -nIE "$words" -- . ':!Cargo.lock' ':!fuzz/Cargo.lock' ':!scripts/hygiene.sh'; then
    echo "the lines above name a machine's path or a registry's host" >&2
    exit 1
fi
if git grep -nIE '^(<{7}|>{7}) ' -- .; then
    echo "the lines above are a merge that nobody finished" >&2
    exit 1
fi
