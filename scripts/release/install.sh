#!/usr/bin/env bash
# Installs what was built, or takes it away again. Builds nothing, so that it may run as root.
#
#   scripts/release/install.sh install        the program, the provider, the module for nginx (where it was built), the C header,
#                                     services for mounted volumes and for counters, neither of them enabled, the name by
#                                     which mount(8) calls the program,
#                                     recover.py, which reads the formats without the program; manual pages and
#                                     completions for bash, zsh and fish;
#                                     where they were built, the programs of benches and simulations, the library for
#                                     programs with data on a GPU, its Python package, and the GPU's kernels. Programs and
#                                     libraries without what only a debugger reads
#   scripts/release/install.sh uninstall      takes away exactly these; refuses while openssl.cnf or a configuration of nginx
#                                     names them, but for FORCE=1
#
# STRIP=: keeps what a debugger reads, for packages, which have it apart.
# PREFIX (/usr/local) is where they are used. DESTDIR is a folder to put before it, for packages; with it only the
# configurations under it are looked at. CARGO_TARGET_DIR (target) is where they were built.
set -euo pipefail
cd "$(dirname "$0")/../.."
prefix=${PREFIX:-/usr/local}
destdir=${DESTDIR:-}
target=${CARGO_TARGET_DIR:-target}
libraries=$prefix/lib/wattlock
if [ "${prefix:0:1}" != / ]; then
    echo "PREFIX=$prefix: not an absolute path" >&2
    exit 1
fi

# Calls a function with each file: mode, what was built, where it goes.
each() {
    "$1" 755 "$target/release/wattlock" "$prefix/bin/wattlock"
    "$1" 755 "$target/release/wattlock-bench" "$prefix/bin/wattlock-bench"
    "$1" 755 "$target/release/wattlock-lab" "$prefix/bin/wattlock-lab"
    "$1" 644 "$target/release/libwattlock_provider.so" "$libraries/libwattlock_provider.so"
    "$1" 755 "$target/bridge/release/wattlock-bridge" "$libraries/wattlock-bridge"
    "$1" 644 "$target/nginx/ngx_http_wattlock_module.so" "$libraries/ngx_http_wattlock_module.so"
    "$1" 644 crates/wattlock-provider/include/wattlock.h "$prefix/include/wattlock.h"
    "$1" 644 systemd/wattlock@.service "$prefix/lib/systemd/system/wattlock@.service"
    "$1" 644 systemd/wattlock-exporter.service "$prefix/lib/systemd/system/wattlock-exporter.service"
    "$1" link ../bin/wattlock "$prefix/sbin/mount.wattlock"
    "$1" 755 scripts/release/recover.py "$libraries/recover.py"
    each_gpu "$1"
    each_page "$1"
}

# Manual pages and completions, as scripts/release/pages.sh left them. The folder of pages is other packages', too: a
# list says which are ours.
each_page() {
    local file name list=$destdir$libraries/pages
    "$1" 644 "$target/share/wattlock" "$prefix/share/bash-completion/completions/wattlock"
    "$1" 644 "$target/share/_wattlock" "$prefix/share/zsh/site-functions/_wattlock"
    "$1" 644 "$target/share/wattlock.fish" "$prefix/share/fish/vendor_completions.d/wattlock.fish"
    if [ -f "$list" ]; then
        while IFS= read -r name; do
            case $name in
            */* | "") ;;
            wattlock*.1)
                # A page of a command that this version has no more goes, too.
                [ "$1" = put ] && [ -f "$target/share/man1/$name" ] || take 644 - "$prefix/share/man/man1/$name"
                ;;
            esac
        done <"$list"
        rm "$list"
    fi
    [ "$1" = put ] || return 0
    for file in "$target"/share/man1/wattlock*.1; do
        [ -e "$file" ] || continue
        put 644 "$file" "$prefix/share/man/man1/${file##*/}"
        printf '%s\n' "${file##*/}" >>"$list"
    done
}

# The library for programs with data on a GPU, with its header and its Python package, which would have nothing to call
# without it; the GPU's kernels, for it and for the program.
each_gpu() {
    local file folder=$target/gpu
    if [ "$1" = take ] || [ -f "$target/release/libwattlock_gpu.so" ]; then
        "$1" 644 "$target/release/libwattlock_gpu.so" "$libraries/libwattlock_gpu.so"
        "$1" 644 crates/wattlock-gpu/include/wattlock/gpu.h "$prefix/include/wattlock/gpu.h"
        for file in python/wattlock/*.py; do "$1" 644 "$file" "$libraries/$file"; done
    else
        echo "not installed: $target/release/libwattlock_gpu.so, which was not built (\`make build\` builds it)"
    fi
    [ "$1" = put ] || folder=$destdir$libraries/gpu
    for file in "$folder"/wattlock*.cubin; do
        # Without kernels the pattern stands for itself.
        [ ! -e "$file" ] || "$1" 644 "$file" "$libraries/gpu/${file##*/}"
    done
}

put() {
    local mode=$1 from=$2 to=$destdir$3 text
    if [ "$mode" = link ]; then
        install -d -m 755 "$(dirname "$to")"
        ln -sfn "$from" "$to"
        echo "installed $to"
        return
    fi
    if [ ! -f "$from" ]; then
        echo "not installed: $from, which was not built (\`make build\` and, for Kafka, \`make bridge\` build it)"
        return
    fi
    install -d -m 755 "$(dirname "$to")"
    # Beside and over, so that a program that has the old one mapped keeps it.
    install -m "$mode" "$from" "$to.new"
    # The GPU's kernels are ELF files, too, and stay as they are.
    case $to in
    *.so | */bin/* | */wattlock-bridge)
        if [ "$(od -An -tx1 -N4 "$from")" = ' 7f 45 4c 46' ] && command -v "${STRIP:-strip}" >/dev/null; then
            "${STRIP:-strip}" "$to.new"
        fi
        ;;
    esac
    if [ "${to##*.}" = service ]; then
        # The service names the program by its whole path.
        text=$(<"$from")
        printf '%s\n' "${text//\/usr\/local\/bin\//"$prefix/bin/"}" >"$to.new"
    fi
    [ "${to##*/}" != recover.py ] || with_readers <"$from" >"$to.new"
    mv -f "$to.new" "$to"
    echo "installed $to"
}

# recover.py as one file: the readers of the formats stand in it.
with_readers() {
    local line reader
    while IFS= read -r line; do
        if [ "$line" != "# READERS" ]; then
            printf '%s\n' "$line"
            continue
        fi
        for reader in files/tests/read_sealed fs/tests/read_volume stream/tests/read_stream; do
            printf "SOURCES['%s'] = r'''\n" "${reader##*/}"
            cat "crates/wattlock-$reader.py"
            printf "'''\n"
        done
    done
}

take() {
    local to=$destdir$3
    # A link whose program is gone already counts as there.
    if [ -e "$to" ] || [ -L "$to" ]; then
        rm "$to"
        echo "removed $to"
    fi
}

# Files of configuration that name the libraries in a line that is no comment.
users() {
    local place places=()
    if [ -z "$destdir" ]; then
        [ -z "${OPENSSL_CONF:-}" ] || places+=("$OPENSSL_CONF")
        place=$(openssl version -d 2>/dev/null | sed -n 's/^OPENSSLDIR: "\(.*\)"$/\1/p' || true)
        [ -z "$place" ] || places+=("$place/openssl.cnf")
    fi
    places+=("$destdir/etc/ssl/openssl.cnf" "$destdir/etc/wattlock" "$destdir/etc/nginx")
    places+=("$destdir/usr/local/nginx/conf")
    for place in "${places[@]}"; do
        [ -e "$place" ] || continue
        # Copies that `enable` keeps have no effect.
        { grep -rHF --exclude='*.before-wattlock*' "$libraries/" "$(realpath "$place")" || true; } |
            sed -n '/:[[:space:]]*#/!s/:.*//p'
    done | sort -u
}

case ${1:-} in
install)
    for built in wattlock libwattlock_provider.so; do
        if [ ! -f "$target/release/$built" ]; then
            echo "$target/release/$built is not there: \`make build\` first" >&2
            exit 1
        fi
    done
    each put
    ;;
uninstall)
    found=$(users)
    if [ -n "$found" ] && [ "${FORCE:-}" != 1 ]; then
        echo "still in use by ${found//$'\n'/, }: \`wattlock openssl disable\` and \`wattlock nginx disable\` first," \
            "or FORCE=1" >&2
        exit 1
    fi
    each take
    # The other folders are the system's.
    rm -rf "$destdir$libraries/python/wattlock/__pycache__"
    for folder in python/wattlock python gpu .; do
        if [ -d "$destdir$libraries/$folder" ]; then
            rmdir --ignore-fail-on-non-empty "$(realpath "$destdir$libraries/$folder")"
        fi
    done
    if [ -d "$destdir$prefix/include/wattlock" ]; then
        rmdir --ignore-fail-on-non-empty "$destdir$prefix/include/wattlock"
    fi
    ;;
*)
    sed -n 's/^#   //p' "$0" >&2
    exit 2
    ;;
esac
