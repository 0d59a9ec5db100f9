#!/usr/bin/env bash
# Handshakes, aborted handshakes, loading and unloading under valgrind's memcheck: no invalid access, no branch on what
# was never written, nothing lost. This sees the provider's own loads and stores; the address sanitizer of the tests does
# not, which instruments their C programs only. Valgrind's processor has no 512-bit vectors, so the kernels that use them
# stand aside by themselves and what is seen is everything around them; the wide ciphers are tried between guard pages
# (crates/wattlock-cpu/tests/instruction_memory.rs). Where there is an nginx, the same of it with the module: one process,
# an emulated card for which handshakes wait, clients that go meanwhile.
#
# The group `ctr` is left out: OpenSSL 3.0 frees a library context's random generator after its providers, so one that
# uses our AES-CTR keeps the provider for ever, once for each context that is freed (3.5 does not).
set -euo pipefail
cd "$(dirname "$0")/../.."
if ! command -v valgrind >/dev/null; then
    echo "valgrind is not installed: nothing is checked" >&2
    exit 0
fi
cargo build --release --locked --lib -p wattlock-provider -p wattlock-emulated
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
pause = always
TEXT
memcheck=(valgrind --quiet --error-exitcode=9 --leak-check=full --show-leak-kinds=definite
    --errors-for-leak-kinds=definite --num-callers=30)
good=0 absent=0 why=
noise='switching stacks\|to suppress, use\|further instances'
for scenario in "handshakes ${HANDSHAKES:-200}" "reload 3"; do
    set -- $scenario
    echo "== $*"
    OPENSSL_CONF=/dev/null "${memcheck[@]}" "$scratch/tls" "$1" "$scratch/openssl.cnf" "$2" 2> >(grep -v "$noise" >&2)
    good=$((good + 1))
done
built=3
if PATH=$PATH:/usr/sbin command -v nginx >/dev/null; then
    built=0
    OUT=$scratch nginx/build.sh || built=$?
fi
# 3: no sources.
[ $built = 0 ] || [ $built = 3 ] || exit 1
if [ $built = 0 ]; then
    case=client_goes_away_with_its_request_in_flight
    echo "== nginx: $case"
    PATH=$PATH:/usr/sbin python3 nginx/tests/survive.py "$case" --count $((${HANDSHAKES:-120} / 30)) --single --patience 120 \
        --module "$scratch/ngx_http_wattlock_module.so" --provider "$target/release/libwattlock_provider.so" \
        --under "$(printf '%q ' "${memcheck[@]}" "--suppressions=$PWD/nginx/tests/valgrind.supp")" 2> >(grep -v "$noise" >&2) | tee "$scratch/said"
    # A scenario that cannot run here says why.
    if why=$(grep -o ': not run: .*' "$scratch/said"); then absent=1; else good=$((good + 1)); fi
else
    absent=1 why='no nginx, or no sources for its module'
    echo "no nginx, or no sources for its module: that part is not checked" >&2
fi
why=${why#: not run: }
echo "valgrind: $good good, $absent not run${why:+ ($why)}, 0 failed"
