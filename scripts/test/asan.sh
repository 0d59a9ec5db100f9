#!/usr/bin/env bash
# What nginx must survive (nginx/tests/survive.py), and the compression filter's tests (nginx/tests/compress.py), with nginx and the
# module under the address sanitizer: each allocation of nginx's pools is one of its own (NGX_DEBUG_PALLOC), so that what is used after
# it is freed, or beyond its end, is found. The provider is instrumented, too: it is built as scripts/test/sanitize.sh builds.
#
#   scripts/test/newer.sh scripts/test/asan.sh [SCENARIO...]
#
# Scenarios are survive.py's, and compress.py's as compress:NAME. Says "not run" of scenarios that preload a library (the sanitizer must
# come first), that start nginx without its environment or in a chroot, or that need a module of another build. Leaks are not looked
# for: nginx frees no pool at its end.
set -euo pipefail
cd "$(dirname "$0")/../.."
source=${WATTLOCK_NGINX:?"run it by scripts/test/newer.sh, which has nginx's sources"}
target=$(realpath "${CARGO_TARGET_DIR:-target}")
place=$target/asan
apart='records_of_an_answer_travel_together|a_connection_that_is_tied_twice_begins_once|the_info_callback_of_nginx_is_called'
apart+='|compress:other_cores|compress:memory_stays_flat|binary_upgrade_keeps_the_module_active|it_is_active_without_proc|versions_that_do_not_match_leave_it_inactive'

triple=$(rustc -vV | sed -n 's/^host: //p')
RUSTC_BOOTSTRAP=1 RUSTFLAGS='-Zsanitizer=address -Cforce-frame-pointers=yes' CARGO_TARGET_DIR=$target/sanitize/address \
    cargo build --config 'profile.dev.package.wattlock-cpu.opt-level=1' --locked --quiet --target "$triple" \
    --lib -p wattlock-provider -p wattlock-emulated
provider=$target/sanitize/address/$triple/debug/libwattlock_provider.so
if [ ! -e "$place/sbin/nginx" ] || [ "$source/sbin/nginx" -nt "$place/sbin/nginx" ]; then
    rm -rf "$place" "$place.work"
    cp -r "$source/src" "$place.work"
    trap 'tail -n 20 "$place.work/log" >&2' EXIT
    (
        cd "$place.work"
        eval "flags=($("$source/sbin/nginx" -V 2>&1 | sed -n 's/^configure arguments: //p'))"
        ./configure "${flags[@]}" --prefix="$place" --with-ld-opt=-fsanitize=address \
            --with-cc-opt='-g -O1 -fno-omit-frame-pointer -fsanitize=address -DNGX_DEBUG_PALLOC=1'
        make -j"$(nproc)"
        make install
    ) >"$place.work/log" 2>&1
    trap - EXIT
    rm -rf "$place.work"
fi
OUT=$place nginx/build.sh "$source/src" "$place/sbin/nginx"

# Workers are another user, which must be able to write there.
reports=$(mktemp -d)
trap 'rm -rf "$reports"' EXIT
chmod 777 "$reports"
# Clients that load the provider have no runtime of their own.
mkdir "$reports/bin"
printf '#!/bin/sh\nLD_PRELOAD=%q exec %q "$@"\n' "$(cc -print-file-name=libasan.so)" "$(command -v openssl)" >"$reports/bin/openssl"
chmod +x "$reports/bin/openssl"
export PATH=$reports/bin:$PATH
export ASAN_OPTIONS=detect_leaks=0:detect_odr_violation=0:log_path=$reports/of
[ $# != 0 ] || mapfile -t all < <(
    python3 nginx/tests/survive.py list
    python3 nginx/tests/compress.py list | sed 's/^/compress:/'
)
# A test's own arguments: compress.py waits as long as it must.
run() {
    local where=(--nginx "$place/sbin/nginx" --module "$place/ngx_http_wattlock_module.so" --provider "$provider")
    case $1 in
        compress:*) python3 nginx/tests/compress.py "${1#compress:}" "${where[@]}" ;;
        *) python3 nginx/tests/survive.py "$1" "${where[@]}" --patience 60 ;;
    esac
}
good=0 bad=0 absent=0
for name in "${@:-${all[@]}}"; do
    if [[ $name =~ ^($apart)$ ]]; then
        echo "$name: not run"
    elif run "$name" >"$reports/said" 2>&1 &&
        ! grep -q 'ERROR: AddressSanitizer' "$reports"/of.* 2>/dev/null; then
        # A scenario that cannot run here says why.
        if grep ': not run: ' "$reports/said"; then
            absent=$((absent + 1))
            sed -n 's/.*: not run: //p' "$reports/said" >>"$reports/why"
        else
            good=$((good + 1))
            echo "$name: good"
        fi
    else
        bad=$((bad + 1))
        echo "$name: FAILED"
        tail -n 20 "$reports/said"
        grep -h -A 30 'ERROR: AddressSanitizer' "$reports"/of.* 2>/dev/null || true
    fi
    rm -f "$reports"/of.*
done
why=$([ ! -e "$reports/why" ] || sort -u "$reports/why" | paste -sd ';')
echo "address sanitizer: $good good, $absent not run${why:+ ($why)}, $bad failed"
[ "$bad" = 0 ] && [ "$good" != 0 ]
