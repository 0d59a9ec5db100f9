#!/usr/bin/env bash
# What a release hands out, from what is committed: target/packages/SUITE, with SHA256SUMS.
#
#   scripts/release/package.sh own|next|all
#                                           in a clean root of this machine's release of Debian, of the next, or in both
#   scripts/release/package.sh built FOLDER [PROFILE]
#                                           here, from what FOLDER, a folder of builds, has already: for tests of packages.
#                                           pkg.wattlock.nobridge is the profile without the bridge to Kafka
#   scripts/release/package.sh archive      wattlock-VERSION-x86_64-linux.tar.gz, whose program starts on glibc 2.28, in
#                                           target/packages/archive; in a clean root, with zig of PyPI as the linker
#   scripts/release/package.sh image [FOLDER]
#                                           wattlock-VERSION-oci.tar: nginx, provider and module, turned on, as an OCI
#                                           image, from the packages in FOLDER (target/packages/SUITE)
#
# Clean roots need root, mmdebstrap and 8 GB of disk (scripts/release/fresh.sh).
set -euo pipefail
fail() { echo "package: $*" >&2; exit 1; }
cd "$(dirname "$0")/../.."
repo=$PWD
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")

# Builds in the clone that is the current folder, for the system it is on; the packages come into the folder above.
build() {
    local profile=${1:-}
    . /etc/os-release
    # A release of Debian has packages of its own, and those of the next one are newer.
    sed -i "1s/(\([^)]*\)) [^;]*;/(\1~deb$VERSION_ID) $VERSION_CODENAME;/" debian/changelog
    dpkg-buildpackage --build=binary --no-sign ${profile:+--build-profiles="$profile"}
    lintian --allow-root --fail-on error --suppress-tags bad-distribution-in-changes-file ../*.changes
}
# Keeps files of a kind in a folder of their own, with their checksums.
keep() {
    local from=$1 to=$target/packages/$2 kind=${3:-.deb}
    rm -rf "$to"
    mkdir -p "$to"
    cp "$from"/*"$kind" "$to"
    (cd "$to" && sha256sum -- *"$kind" >SHA256SUMS)
    echo "== $to"
    ls -l "$to"
}

# Runs a step of this script in a clean root of a release; what it made lies in the folder `made`. A root in which it
# failed does not stay.
in_root() {
    suite=$(scripts/release/fresh.sh "$1" suite)
    made=$target/fresh/$suite/srv
    KEEP=good scripts/release/fresh.sh "$1" -- scripts/release/package.sh "$2"
}
discard() { rm -rf --one-file-system "${made%/srv}"; }

version() { dpkg-parsechangelog --show-field Version | sed 's/~deb.*//'; }
epoch() { dpkg-parsechangelog --show-field Timestamp; }

# The program for older systems, with what goes with it, in the folder above.
archive() {
    local name newest=2.28 needs
    name=wattlock-$(version)-x86_64-linux
    python3 -m venv /opt/zig
    /opt/zig/bin/pip install --quiet --disable-pip-version-check ziglang cargo-zigbuild
    export PATH=/opt/zig/bin:$PATH CARGO_INCREMENTAL=0
    RUSTFLAGS="--remap-path-prefix=$PWD=wattlock --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo" \
        cargo zigbuild --release --locked --target "x86_64-unknown-linux-gnu.$newest" -p wattlock-cli
    install -D "target/x86_64-unknown-linux-gnu/release/wattlock" "../$name/bin/wattlock"
    strip "../$name/bin/wattlock"
    scripts/release/sbom.py sections "../$name"
    needs=$(objdump -T "../$name/bin/wattlock" | sed -n 's/.*GLIBC_\([0-9.]*\).*/\1/p' | sort -Vu | tail -n 1)
    [ "$(printf '%s\n' "$newest" "$needs" | sort -V | tail -n 1)" = "$newest" ] || fail "it needs glibc $needs"
    SOURCE_DATE_EPOCH=$(epoch) scripts/release/sbom.py list >"../$name/components.cdx.json"
    cp -r LICENSE-* CHANGELOG.md README.md docs/use "../$name"
    tar -C .. --sort=name --mtime="@$(epoch)" --owner=0 --group=0 --numeric-owner --mode=go=rX,u+rw,a-s -cf - "$name" |
        gzip -n9 >"../$name.tar.gz"
    "../$name/bin/wattlock" --version
    echo "$name: glibc $needs"
}

case ${1:-} in
inside-archive)
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -qq --no-install-recommends build-essential ca-certificates git python3-venv
    archive
    ;;
archive)
    in_root own inside-archive
    keep "$made" archive .tar.gz
    discard
    ;;
image)
    SOURCE_DATE_EPOCH=$(epoch)
    export SOURCE_DATE_EPOCH
    scratch=$(mktemp -d "${TMPDIR:-/var/tmp}/wattlock-image.XXXXXX")
    trap 'rm -rf --one-file-system "$scratch"' EXIT
    scripts/release/fresh.sh own bare "$scratch/system" nginx openssl
    packages=${2:-$target/packages/$(. "$scratch/system/etc/os-release" && echo "$VERSION_CODENAME")}
    printf '#!/bin/sh\nexit 101\n' >"$scratch/system/usr/sbin/policy-rc.d"
    chmod 755 "$scratch/system/usr/sbin/policy-rc.d"
    cp "$packages"/{wattlock,wattlock-openssl-provider,libnginx-mod-http-wattlock}_*.deb "$scratch/system/srv"
    scripts/release/fresh.sh in "$scratch/system" sh -ec 'apt-get install --yes -qq --no-install-recommends /srv/*.deb
        wattlock openssl enable --yes
        wattlock nginx enable --yes'
    image=wattlock-$(version)-oci.tar
    scripts/release/image.py "$scratch/system" "$scratch/$image" "wattlock:$(version)" "$(epoch)"
    keep "$scratch" image -oci.tar
    ;;
inside)
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -qq --no-install-recommends build-essential ca-certificates git lintian python3
    apt-get build-dep -qq --no-install-recommends ./
    build
    ;;
built)
    [ -d "${2:-}" ] || fail "built FOLDER: a folder of builds"
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    git clone --quiet "file://$repo" "$scratch/wattlock"
    (cd "$scratch/wattlock" && BUILT=$(realpath "$2") && export BUILT && build "${3:-}")
    . /etc/os-release
    # Not among those that are signed: the programs may be of something that is not committed.
    keep "$scratch" "../packages-built/$VERSION_CODENAME"
    ;;
own | next | all)
    for release in own next; do
        case $1 in all | "$release") ;; *) continue ;; esac
        in_root "$release" inside
        keep "$made" "$suite"
        discard
    done
    ;;
*)
    sed -n 's/^#   //p' "$0" >&2
    exit 2
    ;;
esac
