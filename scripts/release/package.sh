#!/usr/bin/env bash
# The packages of a release, from what is committed: target/packages/SUITE, with SHA256SUMS.
#
#   scripts/release/package.sh own|next|all
#                                           in a clean root of this machine's release of Debian, of the next, or in both
#   scripts/release/package.sh built FOLDER [PROFILE]
#                                           here, from what FOLDER, a folder of builds, has already: for tests of packages.
#                                           pkg.wattlock.nobridge is the profile without the bridge to Kafka
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
keep() {
    local from=$1 to=$target/packages/$2
    rm -rf "$to"
    mkdir -p "$to"
    cp "$from"/*.deb "$to"
    (cd "$to" && sha256sum -- *.deb >SHA256SUMS)
    echo "== $to"
    ls -l "$to"
}

case ${1:-} in
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
    keep "$scratch" "built-$VERSION_CODENAME"
    ;;
own | next | all)
    for release in own next; do
        case $1 in all | "$release") ;; *) continue ;; esac
        KEEP=1 scripts/release/fresh.sh "$release" -- scripts/release/package.sh inside
        for root in "$target"/fresh/*/srv; do
            [ -e "$root/wattlock/debian/files" ] || continue
            suite=${root%/srv}
            keep "$root" "${suite##*/}"
            rm -rf --one-file-system "$suite"
        done
    done
    ;;
*)
    sed -n 's/^#   //p' "$0" >&2
    exit 2
    ;;
esac
