#!/usr/bin/env bash
# What the packages promise (package_test.py), in a fresh root of the release that they were built for, without this
# machine's files, processes and network.
#
#   scripts/release/package-test.sh own|next [NAME...]      packages in target/packages/SUITE; NAME is a part of a test's name
#   PACKAGES=FOLDER scripts/release/package-test.sh own     others
#
# Needs root, mmdebstrap and 1 GB of disk.
set -euo pipefail
fail() { echo "package-test: $*" >&2; exit 1; }
cd "$(dirname "$0")/../.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
which=${1:-own}
shift || true
case $which in own | next) ;; *) fail "own or next, not $which" ;; esac
[ "$(id -u)" = 0 ] || fail "needs root"
scratch=$(mktemp -d "${TMPDIR:-/var/tmp}/wattlock-packages.XXXXXX")
trap 'rm -rf --one-file-system "$scratch"' EXIT
root=$scratch/root
scripts/release/fresh.sh "$which" bare "$root" nginx openssl python3 ca-certificates man-db
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
scripts/release/fresh.sh in "$root" apt-get install --yes -qq --no-install-recommends "${needed[@]}" >/dev/null
scripts/release/fresh.sh in "$root" unshare --net sh -c 'ip link set lo up && exec "$@"' sh \
    python3 /srv/package_test.py /srv/packages "$@"
