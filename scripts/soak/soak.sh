#!/usr/bin/env bash
# The long versions of what `make test` does shortly. Once: what lanes compute, beside OpenSSL (10,000 RSA-2048 keys, and
# 10,000 ECDSA signatures where the CPU has AVX-512) and AWS-LC (10,000 X25519 exchanges), and RSA's kernel over its poisoned
# model at its longest. Once with the system's OpenSSL and nginx and once with newer ones (scripts/test/newer.sh): 100,000
# handshakes with aborts in one program and 200,000 with nginx, over which memory stays flat; 100,000 random responses that
# are compressed; handshakes under valgrind; and with
# the newer ones everything that nginx must survive under the address sanitizer (scripts/test/asan.sh).
# Then a mounted volume, where there is FUSE: scripts/soak/fs-suites.sh, which names its parts and variables; pjdfstest,
# xfstests and git's tests only if PJDFSTEST, XFSTESTS and GITSUITE name built ones. Then WATTLOCK_BRIDGE_KILLS=50 kills of the bridge to Kafka and of
# its broker, where there is Java.
# Before that, the exporter with 64 programs and 100,000 scrapes (scripts/soak/exporter.py).
# Then all tests under the address sanitizer, with the newer nginx, what has threads under the thread sanitizer, and the faults that
# each check must find (scripts/test/sanitize.sh, scripts/test/planted.sh): hours of building at first.
# Then for SOAK_MINUTES=30: random histories on a faulty device, the conformance suite with fresh seeds, fuzzing.
# SOAK_PARTS="newer lanes doors typed fs exporter bridge sanitize planted timing histories" chooses.
set -euo pipefail
cd "$(dirname "$0")/../.."
minutes=${SOAK_MINUTES:-30}

chosen() { [[ " ${SOAK_PARTS:-newer lanes doors typed fs exporter bridge sanitize planted timing histories} " = *" $1 "* ]]; }

# With the OpenSSL and the nginx that the environment names.
doors() {
    local scratch target=${CARGO_TARGET_DIR:-target}
    echo "== 100,000 handshakes in one program"
    cargo test --release --locked -p wattlock-provider --test all -- tls:: ten_thousand --ignored --nocapture
    echo "== 200,000 handshakes with nginx"
    cargo build --release --locked --lib -p wattlock-provider -p wattlock-emulated
    scratch=$(mktemp -d)
    OUT=$scratch nginx/build.sh
    PATH=$PATH:/usr/sbin python3 nginx/tests/survive.py memory_stays_flat --count 200000 \
        --module "$scratch/ngx_http_wattlock_module.so" --provider "$target/release/libwattlock_provider.so"
    echo "== 100,000 random responses, compressed"
    PATH=$PATH:/usr/sbin python3 nginx/tests/compress.py upstream --count 100000 \
        --module "$scratch/ngx_http_wattlock_module.so" --provider "$target/release/libwattlock_provider.so"
    rm -r "$scratch"
    echo "== handshakes under valgrind"
    scripts/test/valgrind.sh
    if [ -n "${WATTLOCK_NGINX:-}" ] && ! chosen sanitize; then
        echo "== nginx under the address sanitizer"
        scripts/test/asan.sh
    fi
}
if [ "${1:-}" = doors ]; then doors; exit; fi

# Now, and not after half an hour: it may fail.
if chosen newer; then scripts/test/newer.sh; fi
if chosen lanes; then
    echo "== lanes beside OpenSSL and AWS-LC"
    # All ignored tests of lanes; what a CPU has no lanes for they name.
    cargo test --release --locked -p wattlock-cpu --lib --test all lanes -- --ignored --nocapture
    if ! grep -qw avx512ifma /proc/cpuinfo; then
        echo "== what needs AVX-512, on an emulated CPU (not the thousands of P-256 and P-384 signatures: too slow)"
        scripts/test/avx512.sh
    fi
fi
if chosen doors; then doors; fi
if chosen newer; then scripts/test/newer.sh scripts/soak/soak.sh doors; fi
if chosen typed; then
    echo "== README and every --help, typed, with what takes minutes"
    cargo build --release --locked -p wattlock-cli -p wattlock-bench -p wattlock-lab -p wattlock-provider -p wattlock-emulated
    nginx/build.sh
    for what in readme help; do
        scripts/test/typed.py --minutes --wattlock "${CARGO_TARGET_DIR:-target}/release/wattlock" "$what"
    done
fi
if chosen fs; then
    cargo build --release --locked -p wattlock-cli
    scripts/soak/fs-suites.sh
fi
if chosen exporter; then
    echo "== the exporter: 64 programs, 100,000 scrapes"
    cargo build --release --locked -p wattlock-cli
    scripts/soak/exporter.py "${CARGO_TARGET_DIR:-target}/release/wattlock"
fi
if chosen bridge; then
    echo "== the bridge and its broker, killed at random"
    WATTLOCK_KILLS=${WATTLOCK_BRIDGE_KILLS:-50} scripts/setup/bridge.sh test
fi
if chosen sanitize; then
    echo "== all tests under the address sanitizer, and what has threads under the thread sanitizer"
    scripts/test/newer.sh scripts/test/sanitize.sh address
    scripts/test/sanitize.sh thread
fi
if chosen planted; then
    echo "== planted faults are found"
    scripts/test/planted.sh
fi
if chosen timing; then
    echo "== does a branch or an address depend on a secret?"
    scripts/test/secrets.sh
    echo "== do passes take longer for some secrets?"
    scripts/measure/timing.sh
fi
chosen histories || exit 0
end=$((SECONDS + minutes * 60))
round=0
while [ $SECONDS -lt $end ]; do
    round=$((round + 1))
    export WATTLOCK_SOAK_SEED=$((RANDOM * 32768 + RANDOM)) WATTLOCK_SOAK_ROUNDS=2000
    echo "== round $round, seed $WATTLOCK_SOAK_SEED"
    cargo test --release --locked -p wattlock --test all queued::random_work
    cargo test --release --locked -p wattlock --test all emulated
    cargo test --release --locked -p wattlock-cpu --test guarded_conforms
    cargo test --release --locked -p wattlock --test guarded_queues
    SECONDS_EACH=60 scripts/test/fuzz-smoke.sh
done
