#!/usr/bin/env bash
# OpenSSL's own EVP tests, every file of theirs, with the provider preferred for everything that it can do and without it.
#
#   scripts/test/evp-test.sh           the machine's own release line
#   scripts/test/evp-test.sh SUITE     that of another suite of the same distribution: trixie (Debian 13: OpenSSL 3.5)
#
# `evp_test` and libcrypto come from the suite's source package and are built into target/evp-test/SUITE, once; nothing is
# installed. To build a newer version: rm -r target/evp-test. PROVIDER=FILE is another provider than target/release's.
#
# Without the provider every file must pass. With it a file may have as many errors as scripts/test/evp-test.expected says, for
# the reason that stands there, and no others. More is a defect; fewer means that the list is out of date. Both fail.
set -euo pipefail
cd "$(dirname "$0")/../.."
fail() { echo "evp-test: $*" >&2; exit 1; }
. scripts/setup/sources.sh
own=$(. /etc/os-release; echo "${VERSION_CODENAME:-}")
suite=${1:-$own}
[ -n "$suite" ] || fail 'which suite? /etc/os-release names no VERSION_CODENAME'
mkdir -p "${CARGO_TARGET_DIR:-target}/evp-test"
folder=$(realpath "${CARGO_TARGET_DIR:-target}/evp-test")
place=$folder/$suite work=$folder/$suite.work
provider=${PROVIDER:-${CARGO_TARGET_DIR:-target}/release/libwattlock_provider.so}
[ -e "$provider" ] || fail "no $provider (cargo build --release -p wattlock-provider)"
provider=$(realpath "$provider")

build() {
    local arch fast=()
    arch=$(dpkg-architecture -qDEB_HOST_ARCH)
    case $arch in amd64 | arm64 | ppc64el | riscv64) fast=(enable-ec_nistp_64_gcc_128) ;; esac
    cd "$work"/openssl-*/
    ./Configure "debian-$arch" shared "${fast[@]}"
    make -j"$(nproc)" build_generated
    make -j"$(nproc)" libcrypto.so providers/legacy.so test/evp_test
    mkdir -p "$place/modules"
    cp -P libcrypto.so* "$place"
    cp providers/legacy.so "$place/modules"
    cp test/evp_test "$place"
    cp -r test/recipes/30-test_evp_data "$place/data"
    sed -n 's/^MAJOR=//p; s/^MINOR=//p' VERSION.dat | paste -sd. >"$place/line"
    basename "$PWD" >"$place/version"
}

# One builds, others wait.
exec 9>"$place.lock"
flock 9
if ! [ -e "$place/built" ]; then
    rm -rf "$work" "$place"
    mkdir -p "$place" "$work"
    fetch_sources "$suite" "$work" openssl
    echo "evp-test: building what tests OpenSSL of $suite, which takes some minutes" >&2
    # Not `build ||`, inside of which no failing command would end it.
    trap 'tail -n 20 "$work/log" >&2; fail "not built; all of it is in $work/log"' EXIT
    (build) >"$work/log" 2>&1
    trap - EXIT
    rm -rf "$work"
    touch "$place/built"
fi
exec 9>&-
line=$(<"$place/line")

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
# Everything is asked for, whatever OpenSSL of this line does as quickly. Default properties are `$2`.
configuration() {
    cat <<TEXT
openssl_conf = all
config_diagnostics = 1
[all]
providers = loaded
alg_section = properties
[properties]
${2:+default_properties = $2}
[loaded]
default = activated
legacy = activated
${1:+wattlock = wattlock}
[activated]
activate = 1
[wattlock]
module = $provider
algorithms = gcm,cbc,ctr,xts,rsa,ec,x25519,kdf
activate = 1
TEXT
}
configuration '' '' >"$out/without.cnf"
configuration yes '?provider=wattlock' >"$out/with.cnf"
configuration yes 'provider=wattlock' >"$out/only.cnf"
configuration '' 'provider=wattlock' >"$out/neither.cnf"

# Errors of one file under one configuration; - if the test did not get to its end.
errors() {
    (cd "$place" && OPENSSL_MODULES=$place/modules LD_LIBRARY_PATH=$place timeout 600 \
        ./evp_test -config "$out/$1.cnf" "data/$2.txt") >"$out/$2.$1" 2>&1 || true
    local found
    found=$(sed -n 's/^ *# *Completed [0-9]* tests with \([0-9]*\) errors.*/\1/p' "$out/$2.$1")
    echo "${found:--}"
}

# A provider that is not loaded, or properties that are not heeded, would pass every test. Where nothing but the provider may
# be used, tests of ciphers must fail (it has no ECB), and fewer than where it is not loaded.
only=$(errors only evpciph_aes_common) neither=$(errors neither evpciph_aes_common)
[[ $only =~ ^[1-9] && $neither =~ ^[1-9] && $only -lt $neither ]] ||
    fail "evp_test does not use the provider: $only errors with it alone, $neither without any"

files=0 same=0 bad=0
: >"$out/seen"
for file in "$place"/data/*.txt; do
    name=$(basename "$file" .txt)
    files=$((files + 1))
    before=$(errors without "$name") after=$(errors with "$name")
    expected=$(awk -v line="$line" -v name="$name" '$1 == line && $2 == name { print $3 }' scripts/test/evp-test.expected)
    echo "$name" >>"$out/seen"
    [ "$before" = "$after" ] && same=$((same + 1))
    if [ "$before" != 0 ]; then
        bad=$((bad + 1))
        echo "$name: $before errors without the provider" >&2
        tail -n 30 "$out/$name.without" >&2
    fi
    if [ "$after" != "${expected:-0}" ]; then
        bad=$((bad + 1))
        echo "$name: $after errors with the provider, ${expected:-0} expected" >&2
        grep -B 12 -A 2 'txt:[0-9]*: ' "$out/$name.with" | grep -v 'is fetched\|RUNNING TEST\|skipping' >&2 || true
    elif [ -n "$expected" ]; then
        awk -v line="$line" -v name="$name" '$1 == line && $2 == name' scripts/test/evp-test.expected
    fi
done
gone=$(awk -v line="$line" '$1 == line { print $2 }' scripts/test/evp-test.expected | grep -vxF -f "$out/seen" || true)
[ -z "$gone" ] || fail "scripts/test/evp-test.expected names files that $line does not have: $gone"
[ "$files" -gt 20 ] || fail "only $files files in $place/data"
echo "evp-test: $(<"$place/version") ($suite): $same of $files files give the same with the provider and without"
[ "$bad" = 0 ] || fail "$bad files are not as expected"
