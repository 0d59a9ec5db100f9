#!/usr/bin/env bash
# What the packages promise (package_test.py), in a fresh root of the release that they were built for, without this
# machine's files, processes and network.
#
#   scripts/release/package-test.sh own|next|all [NAME...]  packages in target/packages/SUITE; NAME is a part of a test's name
#   PACKAGES=FOLDER scripts/release/package-test.sh own     others
#   scripts/release/package-test.sh image FILE      an OCI image: what it is made of, and a verified handshake through
#                                           Wattlock of the nginx in it
#
# Needs root, mmdebstrap and 1 GB of disk.
set -euo pipefail
fail() { echo "package-test: $*" >&2; exit 1; }
cd "$(dirname "$0")/../.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
which=${1:-own}
shift || true
image() {
    local system=$scratch/system
    scripts/release/image.py unpack "$1" "$system"
    mkdir -p "$system/srv/wattlock"
    cat >"$system/etc/nginx/conf.d/site.conf" <<'END'
server {
    listen 127.0.0.1:8443 ssl;
    ssl_certificate /srv/site.pem;
    ssl_certificate_key /srv/site.key;
    location / { wattlock_status; }
}
END
    cat >"$system/srv/test.sh" <<'END'
set -eu
ip link set lo up
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost \
    -addext subjectAltName=DNS:localhost -keyout /srv/site.key -out /srv/site.pem 2>/dev/null
nginx
printf 'GET / HTTP/1.0\r\n\r\n' | openssl s_client -quiet -verify_return_error -CAfile /srv/site.pem \
    -verify_hostname localhost -connect 127.0.0.1:8443 2>/dev/null >/srv/answer
nginx -s stop
grep -qE '"active": ?true' /srv/answer || { cat /srv/answer; exit 1; }
END
    scripts/release/fresh.sh in "$system" unshare --net sh /srv/test.sh
    echo "$1: a verified handshake through Wattlock"
}

case $which in own | next | all | image) ;; *) fail "own, next, all or image, not $which" ;; esac
[ "$(id -u)" = 0 ] || fail "needs root"
if [ "$which" = all ]; then
    failed=0
    for one in own next; do scripts/release/package-test.sh "$one" "$@" || failed=1; done
    exit $failed
fi
scratch=$(mktemp -d "${TMPDIR:-/var/tmp}/wattlock-packages.XXXXXX")
trap 'rm -rf --one-file-system "$scratch"' EXIT
if [ "$which" = image ]; then
    [ -f "${1:-}" ] || fail "image FILE"
    image "$1"
    exit
fi
root=$scratch/root
scripts/release/fresh.sh "$which" bare "$root" nginx openssl python3 ca-certificates man-db mount
suite=$(. "$root/etc/os-release" && echo "$VERSION_CODENAME")
packages=${PACKAGES:-$target/packages/$suite}
[ -d "$packages" ] || fail "no packages in $packages: \`make package\` builds them"
mkdir -p "$root/srv/packages"
cp "$packages"/*.deb "$root/srv/packages"
rm -f "$root"/srv/packages/*-dbgsym_*
cp scripts/release/package_test.py "$root/srv"
# No service starts by itself: there is nothing that would start it.
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d"
# What the packages need of Debian's comes first: it is no work of theirs.
mapfile -t needed < <(for package in "$root"/srv/packages/*.deb; do dpkg-deb --field "$package" Depends; done |
    tr ',' '\n' | sed 's/|.*//; s/(.*//; s/[[:space:]]//g' | grep -Ev '^(wattlock.*|libnginx-mod-.*|nginx-abi.*|)$' | sort -u)
scripts/release/fresh.sh in "$root" apt-get update -qq
scripts/release/fresh.sh in "$root" apt-get install --yes -qq --no-install-recommends "${needed[@]}" >/dev/null
scripts/release/fresh.sh in "$root" unshare --net sh -c 'ip link set lo up && exec "$@"' sh \
    python3 -B /srv/package_test.py /srv/packages "$@"
