#!/usr/bin/env bash
# The long versions of what `make test` does shortly. Once: 10,000 signatures of lanes, verified by OpenSSL; 100,000
# handshakes with aborts in one program and 200,000 with nginx, over which memory stays flat; handshakes under valgrind.
# Then for SOAK_MINUTES=30: random histories on a faulty device, the conformance suite with fresh seeds, fuzzing.
set -euo pipefail
cd "$(dirname "$0")/.."
minutes=${SOAK_MINUTES:-30}
echo "== signatures of lanes, verified by OpenSSL"
cargo test --release --locked -p wattlock-cpu --test lanes_openssl -- --ignored
if ! grep -qw avx512ifma /proc/cpuinfo; then
    echo "== what needs AVX-512, on an emulated CPU"
    scripts/avx512.sh
fi
echo "== 100,000 handshakes in one program"
cargo test --release --locked -p wattlock-provider --test tls -- --ignored --nocapture
echo "== 200,000 handshakes with nginx"
cargo build --release --locked -p wattlock-provider
nginx/build.sh
target=${CARGO_TARGET_DIR:-target}
PATH=$PATH:/usr/sbin python3 nginx/tests/survive.py memory_stays_flat --count 200000 \
    --module "$target/nginx/ngx_http_wattlock_module.so" --provider "$target/release/libwattlock_provider.so"
echo "== handshakes under valgrind"
scripts/valgrind.sh
end=$((SECONDS + minutes * 60))
round=0
while [ $SECONDS -lt $end ]; do
    round=$((round + 1))
    export WATTLOCK_SOAK_SEED=$((RANDOM * 32768 + RANDOM)) WATTLOCK_SOAK_ROUNDS=2000
    echo "== round $round, seed $WATTLOCK_SOAK_SEED"
    cargo test --release --locked -p wattlock --test queued random_work
    cargo test --release --locked -p wattlock --test emulated
    cargo test --release --locked -p wattlock-cpu --test guarded_conforms
    SECONDS_EACH=60 scripts/fuzz-smoke.sh
done
