#!/usr/bin/env bash
# Nothing committed may name a machine's private paths or a package registry's host, or be what a merge left half done;
# and no pipe of a script may hang on which end closes first (scripts/test/early.awk). In another repository:
# scripts/test/hygiene.sh FOLDER.
set -euo pipefail
here=$(realpath "$(dirname "$0")")
cd "${1:-$here/../..}"
words='/work/|/root/|crates\.io/api|index\.crates\.io|static\.crates\.io|pypi\.org|files\.pythonhosted|deb\.debian\.org|registry\.npmjs'
if git grep -nIE "$words" -- . ':!Cargo.lock' ':!fuzz/Cargo.lock' ':!scripts/test/hygiene.sh'; then
    echo "the lines above name a machine's path or a registry's host" >&2
    exit 1
fi
if git grep -nIE '^(<{7}|>{7}) ' -- .; then
    echo "the lines above are a merge that nobody finished" >&2
    exit 1
fi

# Whatever says pipefail, and every other shell script: it may be called from one.
mapfile -t scripts < <(
    git grep -lIE 'pipefail|^#!.*sh$' -- . ':!*.md' ':!*.rs' ':!*.awk'
    git ls-files -- Makefile '*.sh'
)
if [ ${#scripts[@]} -gt 0 ] && ! awk -f "$here/early.awk" $(printf '%s\n' "${scripts[@]}" | sort -u); then
    echo "the lines above end a pipe early: its writer dies by SIGPIPE, or not, by chance" >&2
    exit 1
fi
