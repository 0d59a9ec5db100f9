#!/usr/bin/env bash
# Runs a command that says much: its output goes to a log, and one line says that it goes on.
#
#   scripts/setup/quiet.sh WORDS COMMAND...
#
# On a terminal the line moves; otherwise it is repeated every half a minute. What the command said is in
# target/quiet.log (CARGO_TARGET_DIR), and if it fails, its end is shown. The exit status is the command's.
set -euo pipefail
words=$1
shift
log=${CARGO_TARGET_DIR:-target}/quiet.log
folder=$(dirname "$log")
if [ ! -d "$folder" ]; then
    mkdir -p "$folder"
    # Cargo marks a folder as one that may be deleted only if it makes it. `enable` warns of what lies in such a one.
    printf '%s\n' 'Signature: 8a477f597d28d172789f06886806bc55' \
        '# This folder has what builds made (https://bford.info/cachedir/).' >"$folder/CACHEDIR.TAG"
fi
moves=
[ ! -t 1 ] || moves=1
columns=$({ [ -z "$moves" ] || tput cols; } 2>/dev/null || true)
begin=$SECONDS told=-30
CARGO_TERM_COLOR=never CARGO_TERM_PROGRESS_WHEN=never "$@" >"$log" 2>&1 &
job=$!
trap 'kill "$job" 2>/dev/null; exit 130' INT TERM
while kill -0 "$job" 2>/dev/null; do
    took=$((SECONDS - begin))
    if [ -n "$moves" ]; then
        last=$(tail -n 1 "$log" | tr -cd '[:print:]')
        line="$words: $took s $last"
        printf '\r%-*.*s' "$((${columns:-80} - 1))" "$((${columns:-80} - 1))" "$line"
        sleep 0.2
    else
        if [ $((took - told)) -ge 30 ]; then
            echo "$words: $took s"
            told=$took
        fi
        sleep 1
    fi
done
status=0
wait "$job" || status=$?
[ -z "$moves" ] || printf '\r%*s\r' "$((${columns:-80} - 1))" ''
if [ "$status" != 0 ]; then
    tail -n 60 "$log" >&2
    echo "$words: failed with $status after $((SECONDS - begin)) s; all of it is in $log" >&2
    exit "$status"
fi
echo "$words: done after $((SECONDS - begin)) s"
