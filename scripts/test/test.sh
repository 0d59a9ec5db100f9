#!/usr/bin/env bash
# Everything that must hold: format, lints, documentation, licences and advisories, figures, models of the queue, a smoke
# run of every fuzz target, and all tests. Closes with one line that counts the tests.
set -euo pipefail
cd "$(dirname "$0")/../.."
step() { printf '\n== %s (%ss)\n' "$*" "$SECONDS"; }

step format
cargo fmt --all --check
(cd fuzz && cargo fmt --check)
(cd crates/wattlock-bridge && cargo fmt --check)

step lints
cargo clippy --workspace --all-targets --locked -- -D warnings

step documentation
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet

step licences and advisories
python3 scripts/test/dependencies.py

step "words that do not belong in a commit"
scripts/test/hygiene.sh

step "links of pages"
scripts/test/links.py

step "figures are those of the data"
python3 scripts/measure/performance_test.py
python3 scripts/measure/performance.py --check
scripts/test/security.py --check

step "what a release's checks repeat, and what its signature refuses"
scripts/release/check_test.py
scripts/release/sign_test.sh

step "models of the request ring (loom)"
log=$(mktemp); trap 'rm -f "$log"' EXIT
RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/loom \
    cargo test -p wattlock-emul --release --lib --locked ring 2>&1 | tee -a "$log"

step "fuzz targets, a smoke run"
SECONDS_EACH=${SECONDS_EACH:-1} scripts/test/fuzz-smoke.sh

step "GPU kernels, on this CPU"
scripts/test/gpu.sh 2>&1 | tee -a "$log"

step tests
cargo test --workspace --locked --no-fail-fast 2>&1 | tee -a "$log"

step "alerts and dashboard, on a Prometheus where there is one"
scripts/test/monitoring.py "${CARGO_TARGET_DIR:-target}/debug/wattlock"

step "a module for an nginx that is not installed"
nginx/tests/build_test.sh

step "examples, units and workflows, parsed"
.venv/bin/python3 scripts/test/examples.py "${CARGO_TARGET_DIR:-target}/debug/wattlock"

step done
# The runner's own summaries, added up.
awk '/^test result: / { for (i = 1; i < NF; i++) { if ($(i + 1) ~ /^passed/) p += $i; if ($(i + 1) ~ /^failed/) f += $i; if ($(i + 1) ~ /^ignored/) s += $i } }
     END { printf "%d passed, %d failed, %d skipped\n", p, f, s; exit f > 0 || p == 0 }' "$log"
