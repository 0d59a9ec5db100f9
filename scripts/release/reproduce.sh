#!/usr/bin/env bash
# Whether two builds give the same bytes: what is committed is packaged twice here, in other folders, by other users, at
# other times, in other languages and time zones, and with other numbers of jobs.
#
#   scripts/release/fresh.sh own -- scripts/release/reproduce.sh [PROFILE]
#                                           PROFILE: pkg.wattlock.nobridge leaves the bridge to Kafka out
#
# For a clean root, where every user can read the toolchain: it installs what the packages are built with. Takes twice
# the time of a build.
set -euo pipefail
cd "$(dirname "$0")/../.."
repo=$PWD
profile=${1:-}
scratch=$(mktemp -d "${TMPDIR:-/var/tmp}/wattlock-reproduce.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -qq --no-install-recommends build-essential ca-certificates faketime git locales python3
apt-get build-dep -qq --no-install-recommends ./
cargo fetch --locked
[ -n "$profile" ] || cargo fetch --locked --manifest-path crates/wattlock-bridge/Cargo.toml
# Each user has a copy of the registry's sources.
home=${CARGO_HOME:-$HOME/.cargo}
once() {
    local user=$1 folder=$2 language=$3 zone=$4 when=$5 jobs=$6
    mkdir -p "$folder"
    git clone --quiet "file://$repo" "$folder/wattlock"
    mkdir "$folder/cargo"
    cp -r "$home"/registry "$folder/cargo"
    for file in config config.toml; do [ ! -e "$home/$file" ] || cp "$home/$file" "$folder/cargo"; done
    chmod 755 "$scratch"
    chown -R "$user" "$folder"
    (cd "$folder/wattlock" && setpriv --reuid "$user" --regid nogroup --clear-groups \
        env HOME="$folder" CARGO_HOME="$folder/cargo" LANG="$language" LC_ALL="$language" TZ="$zone" \
        CARGO_NET_OFFLINE=true faketime -f "$when" \
        CARGO_BUILD_JOBS="$jobs" dpkg-buildpackage --build=binary --no-sign --jobs="$jobs" ${profile:+--build-profiles="$profile"}) >"$folder/log" 2>&1 ||
        { tail -n 30 "$folder/log" >&2; exit 1; }
}
# Letters have other cases in Turkish.
localedef -i tr_TR -f UTF-8 tr_TR.UTF-8
once nobody "$scratch/a" C UTC '+0d' 1
once games "$scratch/another-folder/deeper" tr_TR.UTF-8 Asia/Tokyo '+400d' 3
bad=0
for package in "$scratch"/a/*.deb; do
    other="$scratch/another-folder/deeper/${package##*/}"
    if cmp -s "$package" "$other"; then
        echo "same bytes: ${package##*/}"
    else
        echo "reproduce: ${package##*/} differs" >&2
        bad=1
    fi
done
exit $bad
