#!/usr/bin/env bash
# The next release lines of OpenSSL and nginx beside the system's own: from another suite of the same distribution, built
# from source into target/newer. Nothing is installed.
#
#   scripts/test/newer.sh              builds them where that is not done, and says what is there
#   scripts/test/newer.sh COMMAND...   the same, then runs a command with them
#
# The command finds `openssl`, `nginx` and a `cc` that knows the headers by PATH, and the libraries by the linkers' own
# variables, so no test knows of this: `scripts/test/newer.sh cargo test -p wattlock-provider`. The system's own clients and
# servers (Python, curl, HAProxy, PostgreSQL) then load the newer libraries, too; nothing but tests should be run so.
# WATTLOCK_NGINX tells nginx/build.sh for which nginx it is to build. To build a newer version: rm -r target/newer.
#
# NEWER_SUITE=trixie (Debian 13: OpenSSL 3.5, nginx 1.26) is another suite if it says so. The mirror, the keys and the proxy
# are those that apt is set up with; its lists and settings are left alone. Needs what `make setup` installs and dpkg-dev.
set -euo pipefail
here=$PWD
cd "$(dirname "$0")/../.."
fail() { echo "newer: $*" >&2; exit 1; }
. scripts/setup/sources.sh
suite=${NEWER_SUITE:-trixie}
mkdir -p "${CARGO_TARGET_DIR:-target}/newer"
place=$(realpath "${CARGO_TARGET_DIR:-target}/newer")
openssl=$place/openssl nginx=$place/nginx work=$place/work

# What the builds need beside the sources.
headers() {
    local missing=() header
    for header in pcre2.h zlib.h; do
        echo "#include <$header>" | cc -DPCRE2_CODE_UNIT_WIDTH=8 -E - >/dev/null 2>&1 || missing+=("$header")
    done
    [ ${#missing[@]} = 0 ] || fail "missing: ${missing[*]} (Debian: libpcre2-dev zlib1g-dev)"
}

build() {
    local jobs arch fast=()
    jobs=$(nproc) arch=$(dpkg-architecture -qDEB_HOST_ARCH)
    # As Debian's own rules have it: what makes P-256 and P-521 fast needs 128-bit integers.
    case $arch in amd64 | arm64 | ppc64el | riscv64) fast=(enable-ec_nistp_64_gcc_128) ;; esac
    (
        cd "$work"/openssl-*/
        ./Configure "debian-$arch" shared no-tests no-docs "${fast[@]}" \
            --prefix="$openssl" --libdir=lib --openssldir="$openssl/ssl" "-Wl,-rpath,$openssl/lib"
        make -j"$jobs" && make install_sw install_ssldirs
    )
    # nginx does not take its environment along when it upgrades its binary, so it must find its libraries without.
    (
        cd "$work"/nginx-*/
        cp -r . "$nginx.src"
        ./configure --prefix="$nginx" --with-compat --with-threads --with-http_ssl_module --with-http_v2_module \
            --with-http_v3_module --with-http_realip_module --with-http_stub_status_module --with-stream \
            --with-stream_ssl_module --with-mail --with-mail_ssl_module --with-cc-opt="-g -O2 -I$openssl/include" \
            --with-ld-opt="-L$openssl/lib -Wl,-rpath,$openssl/lib"
        make -j"$jobs" && make install
    )
    mv "$nginx.src" "$nginx/src"
    # Not C_INCLUDE_PATH: build scripts watch it, and cargo would compile AWS-LC anew whenever it comes or goes.
    mkdir "$place/bin"
    printf '#!/bin/sh\nexec %q -isystem %q "$@"\n' "$(command -v cc)" "$openssl/include" >"$place/bin/cc"
    chmod +x "$place/bin/cc"
}

# One builds, others wait.
exec 9>"$place.lock"
flock 9
# Paths are built in, so a copy of the folder is no build.
stamp="$suite in $place"
if [ "$(cat "$place/built" 2>/dev/null)" != "$stamp" ]; then
    rm -rf "$work"
    headers
    fetch_sources "$suite" "$work" openssl nginx
    rm -rf "$place/built" "$openssl" "$nginx" "$nginx.src" "$place/bin"
    echo "newer: building OpenSSL and nginx of $suite, which takes some minutes" >&2
    # Not `build ||`, inside of which no failing command would end it.
    trap 'tail -n 20 "$work/log" >&2; fail "not built; all of it is in $work/log"' EXIT
    (build) >"$work/log" 2>&1
    trap - EXIT
    rm -rf "$work"
    echo "$stamp" >"$place/built"
fi
exec 9>&-

export WATTLOCK_NGINX=$nginx
export PATH=$place/bin:$openssl/bin:$nginx/sbin:$PATH
export LIBRARY_PATH=$openssl/lib${LIBRARY_PATH:+:$LIBRARY_PATH}
export LD_LIBRARY_PATH=$openssl/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
echo "newer: $(openssl version), $(nginx -v 2>&1 | sed 's/^nginx version: //')" >&2
[ $# = 0 ] || { cd "$here"; exec "$@"; }
