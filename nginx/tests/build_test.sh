#!/usr/bin/env bash
# `nginx/build.sh --nginx`: a module for a build of nginx that is not on this machine, from a tarball of its sources. What
# stands in for nginx.org's is Debian's, which is built with --with-compat, too: its sources without its own flags. The
# module must be taken by the installed nginx, and what is no source of nginx must be refused.
set -euo pipefail
build=$(realpath "$(dirname "$0")/../build.sh")
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"
PATH=$PATH:/usr/sbin
export OUT=$place/out
refused() {
    local code=$1 words=$2 status=0
    shift 2
    "$@" >said 2>&1 || status=$?
    if [ $status != "$code" ] || ! grep -F -e "$words" said >/dev/null; then
        echo "build: exit code $status, not $code with \"$words\": $*" >&2
        cat said >&2
        exit 1
    fi
}
echo text >text.tar.gz
mkdir empty
refused 2 '--nginx VERSION' "$build" --nginx
refused 3 'neither a folder, nor a tarball' "$build" --nginx nginx-1.28.0
refused 3 'no tarball' "$build" --nginx text.tar.gz
refused 3 'has no version' "$build" --nginx empty
refused 1 'is not what NGINX_SHA256 says' env NGINX_SHA256=00 "$build" --nginx text.tar.gz
if [ ! -e /usr/share/nginx/src/configure ] || ! command -v nginx >/dev/null; then
    echo "skipped: a module from a tarball: no nginx, or no nginx-dev"
    exit 0
fi
# As a release has them: in one folder, and without Debian's flags.
tar -C /usr/share/nginx --transform 's,^src,nginx-0.0.0,' --exclude=conf_flags --exclude=debian -chzf nginx.tar.gz src
NGINX_SHA256=$(sha256sum <nginx.tar.gz | cut -d' ' -f1) "$build" --nginx nginx.tar.gz >said
[ -e out/ngx_http_wattlock_module.so ]
printf '%s\n' "load_module $OUT/ngx_http_wattlock_module.so;" "pid $place/pid;" 'events {}' \
    "http { access_log off; wattlock on; server { listen unix:$place/socket; } }" >nginx.conf
nginx -t -e stderr -p "$place" -c "$place/nginx.conf" 2>said || { cat said >&2; exit 1; }
echo "build: a module from a tarball is taken by the installed nginx; five refusals"
