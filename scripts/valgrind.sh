#!/usr/bin/env bash
# Handshakes, aborted handshakes, loading and unloading under valgrind's memcheck: no invalid access, no branch on what
# was never written, nothing lost. Valgrind's processor has no 512-bit vectors, so `lanes` and the wide ciphers stand
# aside by themselves and what is seen is everything around them; the kernels have the address sanitizer (tls.rs).
#
# The group `ctr` is left out: OpenSSL 3.0 frees a library context's random generator after its providers, so one that
# uses our AES-CTR keeps the provider for ever, once for each context that is freed (3.5 does not).
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v valgrind >/dev/null; then
    echo "valgrind is not installed: nothing is checked" >&2
    exit 0
fi
cargo build --release --locked -p wattlock-provider
target=$(realpath "${CARGO_TARGET_DIR:-target}")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
tests=crates/wattlock-provider/tests
cc -O1 -g -I crates/wattlock-provider/include -o "$scratch/tls" $tests/tls.c -lssl -lcrypto
cat >"$scratch/openssl.cnf" <<TEXT
openssl_conf = openssl_init
[openssl_init]
providers = providers
alg_section = properties
[properties]
default_properties = ?provider=wattlock
[providers]
default = default_provider
wattlock = wattlock_provider
[default_provider]
activate = 1
[wattlock_provider]
module = $target/release/libwattlock_provider.so
activate = 1
algorithms = gcm,xts,rsa,ec,x25519
TEXT
for scenario in "handshakes ${HANDSHAKES:-200}" "reload 3"; do
    set -- $scenario
    echo "== $*"
    OPENSSL_CONF=/dev/null valgrind --quiet --error-exitcode=9 --leak-check=full --show-leak-kinds=definite \
        --errors-for-leak-kinds=definite --num-callers=30 "$scratch/tls" "$1" "$scratch/openssl.cnf" "$2" \
        2> >(grep -v 'switching stacks\|to suppress, use\|further instances' >&2)
done
echo "clean"
