#!/usr/bin/env bash
# The long versions of what `make test` does shortly: random histories on a faulty device, the conformance suite with
# fresh seeds, fuzzing; and first 10,000 signatures of lanes, verified by OpenSSL. SOAK_MINUTES=30 by default.
set -euo pipefail
cd "$(dirname "$0")/.."
minutes=${SOAK_MINUTES:-30}
end=$((SECONDS + minutes * 60))
round=0
echo "== signatures of lanes, verified by OpenSSL"
cargo test --release --locked -p wattlock-cpu --test lanes_openssl -- --ignored
while [ $SECONDS -lt $end ]; do
    round=$((round + 1))
    export WATTLOCK_SOAK_SEED=$((RANDOM * 32768 + RANDOM)) WATTLOCK_SOAK_ROUNDS=2000
    echo "== round $round, seed $WATTLOCK_SOAK_SEED"
    cargo test --release --locked -p wattlock --test queued random_work
    cargo test --release --locked -p wattlock --test emulated
    cargo test --release --locked -p wattlock-cpu --test guarded_conforms
    SECONDS_EACH=60 scripts/fuzz-smoke.sh
done
