#!/usr/bin/env bash
# Builds the module for an nginx, by that nginx's own `configure --add-dynamic-module`, and puts it into target/nginx.
#
#   nginx/build.sh                  for Debian's nginx: sources and settings are in the package nginx-dev
#   nginx/build.sh SOURCES NGINX    for a tree of nginx's sources and the program built from it; its own settings are
#                                   taken from `NGINX -V`. Goes into target/nginx/VERSION
#   nginx/build.sh --nginx VERSION|TARBALL|FOLDER
#                                   for the packages and images of nginx.org, which are built with --with-compat: from the
#                                   release's sources. A VERSION is downloaded from nginx.org; NGINX_SHA256= is compared
#                                   with what came. Goes into target/nginx/VERSION
#   WATTLOCK_NGINX=FOLDER nginx/build.sh
#                                   the same for FOLDER/src and FOLDER/sbin/nginx; scripts/test/newer.sh sets it
#
# For tests: OUT= another folder to put it in, DEFINES= further flags of the compiler. For packages: CC_OPT= and LD_OPT=
# are given to nginx's configure. What is built names no folder of the machine that builds.
# Does nothing where the module is newer than everything it is made of. Exit status: 3 where there are no sources of
# nginx, 1 if it could not be built.
set -euo pipefail
here=$PWD
cd "$(dirname "$0")/.."
repo=$PWD
out=${CARGO_TARGET_DIR:-target}/nginx
[ $# != 0 ] || [ -z "${WATTLOCK_NGINX:-}" ] || set -- "$WATTLOCK_NGINX/src" "$WATTLOCK_NGINX/sbin/nginx"
scratch=$(mktemp -d "${TMPDIR:-/tmp}/wattlock-nginx.XXXXXX")
trap 'rm -rf "$scratch"' EXIT

# The sources of a release of nginx.org: a folder, or one made of a tarball.
release() {
    local what=$1 tarball=$1 sum
    if [ -d "$what" ]; then
        realpath "$what"
        return
    fi
    if [[ $what =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]]; then
        tarball=$scratch/nginx.tar.gz
        curl --proto '=https' --fail --silent --show-error --location --output "$tarball" \
            "https://nginx.org/download/nginx-$what.tar.gz" ||
            { echo "no sources of nginx $what: nginx.org does not answer; name a tarball or a folder" >&2; exit 3; }
        sum=$(sha256sum <"$tarball")
        echo "nginx-$what.tar.gz: SHA-256 ${sum%% *}" >&2
    elif [ ! -f "$tarball" ]; then
        echo "no sources of nginx in $what: neither a folder, nor a tarball, nor a version" >&2
        exit 3
    fi
    sum=$(sha256sum <"$tarball")
    if [ -n "${NGINX_SHA256:-}" ] && [ "$NGINX_SHA256" != "${sum%% *}" ]; then
        echo "$what is not what NGINX_SHA256 says: ${sum%% *}" >&2
        exit 1
    fi
    mkdir "$scratch/release"
    tar -C "$scratch/release" --strip-components=1 --no-same-owner -xf "$tarball" >&2 ||
        { echo "$what: no tarball" >&2; exit 3; }
    echo "$scratch/release"
}

compat=
if [ "${1:-}" = --nginx ]; then
    [ $# = 2 ] || { echo "--nginx VERSION, TARBALL or FOLDER" >&2; exit 2; }
    compat=1
    # Paths are those of the caller's folder.
    case $2 in /*) sources=$2 ;; *) sources=$here/$2 ;; esac
    [ -e "$sources" ] || sources=$2
    sources=$(release "$sources")
    set -- "$sources"
fi
sources=${1:-/usr/share/nginx/src}
nginx=${2:-}
version=
if [ -n "$nginx" ]; then
    version=$("$nginx" -v 2>&1 | sed 's,.*/,,; s/ .*//')
elif [ -n "$compat" ]; then
    version=$(sed -n 's/^#define NGINX_VERSION  *"\(.*\)"/\1/p' "$sources/src/core/nginx.h" 2>/dev/null || true)
    [[ $version =~ ^[0-9.]+$ ]] || { echo "no sources of nginx in $sources: src/core/nginx.h has no version" >&2; exit 3; }
fi
[ -z "$version" ] || out=$out/$version
out=${OUT:-$out}
name=ngx_http_wattlock_module.so
module=$out/$name

if [ ! -e "$sources/configure" ] && [ ! -e "$sources/auto/configure" ]; then
    echo "no sources of nginx in $sources: install nginx-dev (Debian, Ubuntu), or name a folder with them" >&2
    exit 3
fi
made_of=(nginx/config nginx/build.sh nginx/src crates/wattlock-provider/include Cargo.toml "$sources/src")
if [ -e "$module" ] && [ -z "$(find "${made_of[@]}" -newer "$module" -print -quit)" ]; then
    exit 0
fi

cp -r "$sources" "$scratch/src"
cd "$scratch/src"
configure=./configure
[ -e "$configure" ] || configure=auto/configure
NGX_CONF_FLAGS=()
if [ -n "$nginx" ]; then
    eval "NGX_CONF_FLAGS=($("$nginx" -V 2>&1 | sed -n 's/^configure arguments: //p'))"
elif [ -n "$compat" ]; then
    # What changes what the module is compiled from; --with-compat makes the rest the same for every build.
    NGX_CONF_FLAGS=(--with-compat --with-threads --with-file-aio)
    for part in http_ssl http_v2 http_v3 http_realip; do
        if grep -c -e "--with-${part}_module)" auto/options >/dev/null; then
            NGX_CONF_FLAGS+=("--with-${part}_module")
        fi
    done
elif [ -e conf_flags ]; then
    . ./conf_flags
else
    NGX_CONF_FLAGS=(--with-compat --with-http_ssl_module)
fi
[ -z "${CC_OPT:-}" ] || NGX_CONF_FLAGS+=(--with-cc-opt="$CC_OPT")
[ -z "${LD_OPT:-}" ] || NGX_CONF_FLAGS+=(--with-ld-opt="$LD_OPT")
maps="-ffile-prefix-map=$scratch/src=nginx -ffile-prefix-map=$repo=wattlock"
log=$scratch/log
if ! { "$configure" "${NGX_CONF_FLAGS[@]}" --add-dynamic-module="$repo/nginx" &&
    sed -i "s|^CFLAGS = |CFLAGS = $maps ${DEFINES:-} |" objs/Makefile && make -f objs/Makefile modules; } >"$log" 2>&1; then
    tail -n 30 "$log" >&2
    echo "the module could not be built (it needs libssl-dev, libpcre2-dev and zlib1g-dev)" >&2
    exit 1
fi

# `wattlock nginx check` reads from this section which version the module is of.
sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$repo/Cargo.toml" | tr -d '\n' >"$scratch/version"
objcopy --add-section .wattlock.version="$scratch/version" "objs/$name"
cd "$repo"
mkdir -p "$out"
# Beside and over, so that an nginx that has the old one mapped keeps it.
cp "$scratch/src/objs/$name" "$module.new"
mv "$module.new" "$module"
echo "built $module"
