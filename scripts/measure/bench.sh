#!/usr/bin/env bash
# Every bench, with its table, and its figures as JSON in target/bench: what `make bench` runs.
#
#   scripts/measure/bench.sh [BENCH]...     engines, dispatch, start, lanes, files, https, openssl; without any, all
set -euo pipefail
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-target}
wattlock=${WATTLOCK:-$target/release/wattlock}
out=$target/bench
mkdir -p "$out"
[ $# != 0 ] || set -- engines dispatch start lanes files https openssl
for bench; do
    printf '\n\033[1m%s\033[0m\n' "$bench"
    case $bench in
    openssl)
        if command -v python3 >/dev/null; then
            scripts/measure/measure-openssl.sh --json "$out/openssl.json" 1 5
        else
            echo "no python3 here, so no JSON of this one"
            scripts/measure/measure-openssl.sh 1 5
        fi
        ;;
    https)
        if [ ! -e "$target/nginx/ngx_http_wattlock_module.so" ]; then
            echo "left out: no module for nginx was built (nginx/build.sh says why)"
            continue
        fi
        "$wattlock" bench https --json "$out/https.json"
        ;;
    lanes)
        # A CPU without lanes has nothing to measure here, and says so.
        "$wattlock" bench lanes --json "$out/lanes.json" || rm -f "$out/lanes.json"
        ;;
    *) "$wattlock" bench "$bench" --json "$out/$bench.json" ;;
    esac
done
printf '\nJSON: %s\n' "$out"
