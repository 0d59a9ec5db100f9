#!/bin/sh
# Installs packages of Debian's or Ubuntu's. Servers among them are for us to run: their own services start neither now nor at the
# next boot. `wattlock serve --install` has this text within it, scripts/setup/setup.sh calls it.
#
#   install.sh [--listed] PACKAGE...     --listed: apt's lists are fresh
set -eu
if ! command -v apt-get >/dev/null; then
    echo "this is no Debian or Ubuntu; please install: $*" >&2
    exit 1
fi
sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
if [ "$1" = --listed ]; then shift; else $sudo apt-get update -qq; fi
servers=
for server in nginx haproxy postgresql; do
    case " $* " in *" $server "*) servers="$servers $server" ;; esac
done
# invoke-rc.d asks this file whether a server may start.
policy=/usr/sbin/policy-rc.d
if [ -n "$servers" ] && [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' | $sudo tee "$policy" >/dev/null
    $sudo chmod +x "$policy"
    trap '$sudo rm -f "$policy"' EXIT
fi
DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "$@" </dev/null >/dev/null
for server in $servers; do
    if command -v systemctl >/dev/null; then $sudo systemctl --quiet disable "$server" 2>/dev/null || true; fi
    echo "$server is installed, its own service is off (systemctl enable --now $server turns it on)"
done
