#!/bin/sh
# Builds every fuzz target that links no C and no engine with the stable compiler and runs each for a few seconds: enough to
# show that they run and that nothing falls over at once. All targets, with the address sanitizer, from kept corpora and for
# as long as is asked: scripts/test/fuzz.py. SECONDS_EACH=600 scripts/test/fuzz-smoke.sh [TARGET...]
#
# cargo-fuzz is not needed: libFuzzer's coverage comes from LLVM's own instrumentation, asked for here.
set -eu
cd "$(dirname "$0")/../../fuzz"

seconds=${SECONDS_EACH:-4}
host=$(rustc -vV | sed -n 's/^host: //p')
# Programs of the manifest that need no feature.
[ $# -gt 0 ] || set -- $(awk 'BEGIN { RS = "" } /^\[\[bin\]\]/ && !/required-features/ { split($0, part, "\""); print part[2] }' Cargo.toml)

coverage="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4"
coverage="$coverage -Cllvm-args=-sanitizer-coverage-inline-8bit-counters"
coverage="$coverage -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"

# A target is named, so that build scripts and macros, which no fuzzer links, stay without coverage.
CARGO_TARGET_DIR=target RUSTFLAGS="--cfg fuzzing $coverage -Ccodegen-units=1" \
    cargo build --release --locked --target "$host" --bins

for name; do
    mkdir -p "corpus/$name" artifacts
    # The first directory grows; the seeds beside it are only read.
    log=artifacts/$name.log
    if ! "target/$host/release/$name" "corpus/$name" $([ ! -d "seeds/$name" ] || echo "seeds/$name") -max_total_time="$seconds" -max_len=4096 \
        -timeout=10 -rss_limit_mb=2048 -artifact_prefix="artifacts/$name-" -print_final_stats=1 2>"$log"; then
        tail -n 40 "$log" >&2
        echo "fuzz: $name failed; the input is in fuzz/artifacts" >&2
        exit 1
    fi
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    [ "${runs:-0}" -gt 0 ] || { echo "fuzz: $name ran nothing" >&2; exit 1; }
    echo "fuzz: $name, $runs inputs in $seconds s"
done
