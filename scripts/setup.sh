#!/usr/bin/env bash
# Installs what is missing for a purpose: build, run or test. Does nothing where nothing is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
purpose=${1:-test}

least=1.89
if ! command -v cargo >/dev/null; then
    cat >&2 <<'TEXT'
No Rust toolchain found. Get one (1.89 or newer) with rustup, which your distribution packages:
    apt-get install rustup && rustup default stable
or follow the instructions at the Rust project's own site, then run this again.
TEXT
    exit 1
fi
have=$(rustc --version | cut -d' ' -f2)
if [ "$(printf '%s\n' "$least" "$have" | sort -V | head -n 1)" != "$least" ]; then
    echo "rustc $have is too old: $least or newer is needed (rustup update)" >&2
    exit 1
fi

missing=()
need() { command -v "$1" >/dev/null || missing+=("$2"); }
need cc build-essential
if [ "$purpose" != build ]; then
    need openssl openssl
    need age age
fi
if [ "$purpose" = test ]; then
    need chromium chromium
    need ssh-keygen openssh-client
    need python3 python3
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
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

# The independent reader of sealed files wants a current `cryptography`, which distributions rarely have.
if [ "$purpose" = test ] && ! .venv/bin/python3 -c 'import cryptography' 2>/dev/null; then
    python3 -m venv .venv
    .venv/bin/pip install --quiet --disable-pip-version-check 'cryptography>=44'
fi
if [ "$purpose" = test ]; then
    for component in rustfmt clippy; do
        cargo "${component/rustfmt/fmt}" --version >/dev/null 2>&1 || rustup component add "$component"
    done
fi
