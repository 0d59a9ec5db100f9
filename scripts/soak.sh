#!/usr/bin/env bash
# The long versions of what `make test` does shortly. Once: what lanes compute, beside OpenSSL (10,000 RSA-2048 keys, and
# 10,000 ECDSA signatures where the CPU has AVX-512) and AWS-LC (10,000 X25519 exchanges), and RSA's kernel over its poisoned
# model at its longest. Once with the system's OpenSSL and nginx and once with newer ones (scripts/newer.sh): 100,000
# handshakes with aborts in one program and 200,000 with nginx, over which memory stays flat; handshakes under valgrind; and with
# the newer ones everything that nginx must survive under the address sanitizer (scripts/asan.sh).
# Then WATTLOCK_KILLS=150 kills of a mounted volume in mid-write, where there is FUSE.
# Then for SOAK_MINUTES=30: random histories on a faulty device, the conformance suite with fresh seeds, fuzzing.
set -euo pipefail
cd "$(dirname "$0")/.."
minutes=${SOAK_MINUTES:-30}

# With the OpenSSL and the nginx that the environment names.
doors() {
    local scratch target=${CARGO_TARGET_DIR:-target}
    echo "== 100,000 handshakes in one program"
    cargo test --release --locked -p wattlock-provider --test tls -- --ignored --nocapture
    echo "== 200,000 handshakes with nginx"
    cargo build --release --locked -p wattlock-provider
    scratch=$(mktemp -d)
    OUT=$scratch nginx/build.sh
    PATH=$PATH:/usr/sbin python3 nginx/tests/survive.py memory_stays_flat --count 200000 \
        --module "$scratch/ngx_http_wattlock_module.so" --provider "$target/release/libwattlock_provider.so"
    rm -r "$scratch"
    echo "== handshakes under valgrind"
    scripts/valgrind.sh
    if [ -n "${WATTLOCK_NGINX:-}" ]; then
        echo "== nginx under the address sanitizer"
        scripts/asan.sh
    fi
}
if [ "${1:-}" = doors ]; then doors; exit; fi

# Now, and not after half an hour: it may fail.
scripts/newer.sh
echo "== lanes beside OpenSSL and AWS-LC"
# All ignored tests of these files; what a CPU has no lanes for they name.
cargo test --release --locked -p wattlock-cpu --lib --test lanes_rsa --test lanes_openssl --test lanes_x25519 --test lanes_bulk -- \
    --ignored --nocapture
if ! grep -qw avx512ifma /proc/cpuinfo; then
    echo "== what needs AVX-512, on an emulated CPU (not the thousands of P-256 and P-384 signatures: too slow)"
    scripts/avx512.sh
fi
doors
scripts/newer.sh scripts/soak.sh doors
echo "== a mounted volume, killed in mid-write"
WATTLOCK_KILLS=${WATTLOCK_KILLS:-150} cargo test --release --locked -p wattlock-cli --test mount -- \
    what_was_synced_survives_kills_in_mid_write --nocapture
end=$((SECONDS + minutes * 60))
round=0
while [ $SECONDS -lt $end ]; do
    round=$((round + 1))
    export WATTLOCK_SOAK_SEED=$((RANDOM * 32768 + RANDOM)) WATTLOCK_SOAK_ROUNDS=2000
    echo "== round $round, seed $WATTLOCK_SOAK_SEED"
    cargo test --release --locked -p wattlock --test queued random_work
    cargo test --release --locked -p wattlock --test emulated
    cargo test --release --locked -p wattlock-cpu --test guarded_conforms
    cargo test --release --locked -p wattlock --test guarded_queues
    SECONDS_EACH=60 scripts/fuzz-smoke.sh
done
