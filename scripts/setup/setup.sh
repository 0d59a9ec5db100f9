#!/usr/bin/env bash
# Installs what is missing for a purpose: build, run or test. Does nothing where nothing is missing.
set -euo pipefail
cd "$(dirname "$0")/../.."
purpose=${1:-test}

least=1.89
if ! command -v cargo >/dev/null; then
    cat >&2 <<'TEXT'
No Rust toolchain found. Get one (1.89 or newer) with rustup, which Debian 13 and Ubuntu 24.04 package:
    apt-get install rustup && rustup default stable
Elsewhere (Debian 12 has no such package) follow rustup's own site, then run this again.
TEXT
    exit 1
fi
have=$(rustc --version | cut -d' ' -f2)
if [ "$(printf '%s\n' "$least" "$have" | sort -V | sed -n 1p)" != "$least" ]; then
    echo "rustc $have is too old: $least or newer is needed (rustup update)" >&2
    exit 1
fi

missing=()
need() { command -v "$1" >/dev/null || [[ " ${missing[*]} " = *" $2 "* ]] || missing+=("$2"); }
need cc build-essential
# libfuzzer-sys, which the fuzz targets are linked with, is C++.
need c++ build-essential
if [ "$purpose" != build ]; then
    need openssl openssl
    need age age
    # nginx, and what its module is built with. Other systems than Debian's have no nginx-dev: see nginx/build.sh.
    PATH=$PATH:/usr/sbin need nginx nginx
    [ -e /usr/share/nginx/src/configure ] || missing+=(nginx-dev)
    [ -e /usr/include/openssl/ssl.h ] || missing+=(libssl-dev)
    [ -e /usr/include/pcre2.h ] || missing+=(libpcre2-dev)
    [ -e /usr/include/zlib.h ] || missing+=(zlib1g-dev)
    # igzip, which is loaded at run time; without it deflate is zlib-rs's alone.
    ldconfig -p 2>/dev/null | grep -F libisal.so.2 >/dev/null || missing+=(libisal2)
    need pigz pigz
fi
if [ "$purpose" = test ]; then
    # Any of the names that the tests try.
    command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || need chromium chromium
    need git git
    need ps procps
    need mount mount
    need ssh-keygen openssh-client
    need python3 python3
    need curl curl
    need zstd zstd
    need gnutls-cli gnutls-bin
    PATH=$PATH:/usr/sbin need haproxy haproxy
    # Their own services stay off: the tests start servers of their own on loopback.
    PATH=$PATH:/usr/sbin need sshd openssh-server
    PATH=$PATH:/usr/sbin need vsftpd vsftpd
    # Its programs are in a folder of their version's.
    compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || need initdb postgresql
    need valgrind valgrind
    # Programs that confine themselves.
    PATH=$PATH:/usr/sbin need sshd openssh-server
    PATH=$PATH:/usr/sbin need vsftpd vsftpd
    # What needs AVX-512 is tested on an emulated CPU where there is none: scripts/test/avx512.sh.
    if [ "$(uname -m)" = x86_64 ] && ! grep -qw avx512ifma /proc/cpuinfo; then
        need bochs bochs
        [ -e /usr/lib/x86_64-linux-gnu/bochs/plugins/libbx_term_gui.so ] || missing+=(bochs-term)
        [ -e /usr/share/bochs/BIOS-bochs-latest ] || missing+=(bochsbios)
        [ -e /usr/share/bochs/VGABIOS-lgpl-latest ] || missing+=(vgabios)
        need xorriso xorriso
    fi
    # TLS in nginx's other protocols, and Lua in its handshakes: modules of their own in Debian.
    for module in mail stream http_lua; do
        [ -e "/usr/lib/nginx/modules/ngx_${module}_module.so" ] || missing+=("libnginx-mod-${module//_/-}")
    done
    [ -x .venv/bin/python3 ] || python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
fi
if [ ${#missing[@]} -gt 0 ]; then
    echo "installing ${missing[*]}"
    sudo=; [ "$(id -u)" = 0 ] || sudo=sudo
    if ! command -v apt-get >/dev/null; then
        echo "this is no Debian or Ubuntu; please install: ${missing[*]}" >&2
        exit 1
    fi
    $sudo apt-get update -qq
    # Leaves out a package that this distribution has not, and says what that means.
    spare() {
        local status=0
        [[ " ${missing[*]} " = *" $1 "* ]] || return 0
        scripts/setup/candidate.sh "$1" || status=$?
        case $status in
            0) return 0 ;;
            1) echo "no package $1 here: $2" >&2 ;;
            *) exit 1 ;;
        esac
        for at in "${!missing[@]}"; do [ "${missing[at]}" != "$1" ] || unset "missing[at]"; done
    }
    spare nginx-dev "the module for nginx cannot be built (nginx/build.sh takes sources, too); without it neither
\`wattlock serve\` nor \`wattlock nginx enable\` works"
    spare libisal2 "deflate's first levels are zlib-rs's, which is slower"
    spare pigz "\`wattlock bench compress\` has no peer for \`wattlock gzip\`"
    spare libnginx-mod-http-lua "the test of Lua in nginx's handshakes is skipped"
    spare chromium "the tests that open pages in it are skipped (Ubuntu has it as a snap only)"
    [ ${#missing[@]} -eq 0 ] || sh crates/wattlock-shell/src/nginx/install.sh --listed "${missing[@]}"
    if [[ " ${missing[*]} " = *" nginx-dev "* ]] && [ ! -e /usr/share/nginx/src/configure ]; then
        echo "nginx-dev is installed, but has no sources of nginx in /usr/share/nginx/src" >&2
        exit 1
    fi
fi

# The independent reader of sealed files wants a current `cryptography`, which distributions rarely have; the examples want
# the schemas of compose, of workflows and of Kubernetes.
if [ "$purpose" = test ] &&
    ! .venv/bin/python3 -c 'import cryptography, check_jsonschema, kubernetes_validate' 2>/dev/null; then
    python3 -m venv .venv
    .venv/bin/pip install --quiet --disable-pip-version-check 'cryptography>=44' check-jsonschema kubernetes-validate
fi
if [ "$purpose" = test ]; then
    for component in rustfmt clippy; do
        cargo "${component/rustfmt/fmt}" --version >/dev/null 2>&1 || rustup component add "$component"
    done
fi
