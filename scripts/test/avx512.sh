#!/usr/bin/env bash
# Runs tests on an emulated CPU with AVX-512 (IFMA, VAES, VPCLMULQDQ), for machines that have none: there the engine `lanes`
# and the 512-bit kernels of `instruction` are otherwise skipped. It is the instructions that are tested; no time measured
# here means anything. Debian's Bochs boots a Debian kernel with the test binaries in its initramfs, without network, disk or
# display. The boot takes about a minute, the default tests took about ten more, six of them `lanes_conform`, before the suite
# had RSA's Wycheproof vectors; with those they were not timed here.
#
#   scripts/test/avx512.sh                                     what of wattlock-cpu is quick enough (the list is below)
#   scripts/test/avx512.sh -p PACKAGE --test NAME              cargo's own words choose the binaries ...
#   scripts/test/avx512.sh -p PACKAGE --lib -- aes::vaes512    ... and the test runner's choose the tests
#   scripts/test/avx512.sh -b BINARY [-b BINARY] -- FILTER     binaries that are built already
#   scripts/test/avx512.sh -b BINARY [-b BINARY] -r SCRIPT     the shell script SCRIPT instead of tests; the binaries are in /tests, 01-NAME ...
#   scripts/test/avx512.sh -x PROGRAM [-- WORDS]               a program that is no test, with these words and no others
#
# LIMIT=1800 is the time limit in seconds. Exits with 0 if all tests passed, 1 if one did not, 2 if there was no result.
# Needs bochs, bochs-term, bochsbios, vgabios, xorriso; a kernel, busybox and isolinux are downloaded by apt-get, unpacked in
# target/avx512 and installed nowhere. Needs no root.
set -euo pipefail
cd "$(dirname "$0")/../.."
limit=${LIMIT:-1800}
target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target"
target=$(cd "$target" && pwd)

binaries=() selection=() arguments=() runner=' --test-threads=1' script=
while [ $# -gt 0 ]; do
    case $1 in
        -b) binaries+=("$2"); shift 2 ;;
        -x) binaries+=("$2"); runner=; shift 2 ;;
        -r) script=$2; shift 2 ;;
        --) shift; arguments=("$@"); break ;;
        *) selection+=("$1"); shift ;;
    esac
done
if [ ${#selection[@]} = 0 ] && [ ${#binaries[@]} = 0 ]; then
    # What was seen to pass here, test by test. Left out: `software`, which is the same everywhere (--skip software
    # costs one test of instruction_chacha, too); lanes_rsa, whose hundreds of keys take longer than the rest together; and what
    # was not seen to the end here.
    selection=(-p wattlock-cpu --lib --test all)
    if [ ${#arguments[@]} = 0 ]; then
        for unseen in software lanes::nist lanes::rsa lanes::x25519 lanes_rsa:: lanes_openssl:: lanes_bulk:: compress:: \
            every_width:: instruction_conforms:: instruction_keys:: instruction_memory:: streams:: xts_equal_halves::; do
            arguments+=(--skip "$unseen")
        done
    fi
fi

missing=()
for tool in bochs xorriso script strip; do
    PATH=$PATH:/usr/sbin command -v "$tool" >/dev/null || missing+=("$tool")
done
bios=/usr/share/bochs
for file in "$bios/BIOS-bochs-latest" "$bios/VGABIOS-lgpl-latest"; do [ -e "$file" ] || missing+=("$file"); done
if [ ${#missing[@]} -gt 0 ]; then
    echo "missing: ${missing[*]} (apt-get install bochs bochs-term bochsbios vgabios xorriso)" >&2
    exit 2
fi

# What boots. Debian's cloud kernel is the smallest with a serial console.
system=$target/avx512/system
if [ ! -e "$system/complete" ]; then
    rm -rf "$system"
    mkdir -p "$system"
    kernel=$(apt-cache depends linux-image-cloud-amd64 | awk '!n && $1 == "Depends:" && $2 ~ /^linux-image-/ { n = 1; print $2 }')
    [ -n "$kernel" ] || { echo 'apt knows no linux-image-cloud-amd64 (apt-get update?)' >&2; exit 2; }
    (cd "$system" && apt-get -qq -o APT::Sandbox::User="$(id -un)" download "$kernel" busybox-static isolinux syslinux-common)
    for package in "$system"/*.deb; do dpkg-deb -x "$package" "$system"; done
    rm "$system"/*.deb
    touch "$system/complete"
fi

if [ ${#selection[@]} -gt 0 ]; then
    while IFS= read -r binary; do binaries+=("$binary"); done < <(
        cargo test --no-run --locked --message-format=json-render-diagnostics "${selection[@]}" | python3 -c '
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message["profile"]["test"]:
        print(message["executable"])')
fi
[ ${#binaries[@]} -gt 0 ] || { echo 'no test binaries' >&2; exit 2; }

work=$(mktemp -d "$target/avx512/run.XXXXXX")
emulator=
cleanup() {
    # Bochs with a debugger survives a polite signal.
    if [ -s "$work/pid" ]; then kill -KILL "$(cat "$work/pid")" 2>/dev/null || true; fi
    # And `script`, whose input is at its end, does not notice that Bochs is gone.
    if [ -n "$emulator" ]; then
        kill -KILL "$emulator" 2>/dev/null || true
        wait "$emulator" 2>/dev/null || true
    fi
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 2' INT TERM

# The initramfs: busybox, the binaries without their line tables, the shared libraries that they name, and openssl, which some
# tests ask for a second opinion.
root=$work/root
mkdir -p "$root"/{bin,proc,dev,tmp,tests,usr/bin,usr/lib/ssl} "$root$target/tmp"
cp "$system/bin/busybox" "$root/bin/"
ln -s busybox "$root/bin/sh"
[ ! -e /etc/ssl/openssl.cnf ] || cp /etc/ssl/openssl.cnf "$root/usr/lib/ssl/"
with_libraries() {
    ldd "$1" | grep -o '/[^ ]*' | while IFS= read -r library; do
        [ -e "$root$library" ] || install -D "$library" "$root$library"
    done
}
openssl=$(command -v openssl || true)
if [ -n "$openssl" ]; then
    cp "$openssl" "$root/bin/openssl"
    with_libraries "$openssl"
fi
number=0
for binary in "${binaries[@]}"; do
    number=$((number + 1))
    name=$(basename "$binary")
    strip -o "$root/tests/$(printf '%02d' "$number")-${name%-*}" "$binary"
    with_libraries "$binary"
done
{
    # OPENSSL_ia32cap, which AWS-LC reads, too, takes two things away from libraries (not from our kernels, which have their
    # own detection): in Bochs 2.7 SHA1RNDS4 and the flags of ADOX are wrong; 2.8 and later have them right.
    cat <<'INIT'
#!/bin/sh
export PATH=/bin HOME=/tmp RUST_BACKTRACE=0 OPENSSL_ia32cap=:~0x20080000 WATTLOCK_EMULATED_CPU=1
busybox mount -t proc proc /proc
busybox mount -t devtmpfs dev /dev
exec >/dev/ttyS0 2>&1 </dev/null
busybox stty -F /dev/ttyS0 -onlcr 2>/dev/null
for feature in avx512f avx512bw avx512vl avx512dq avx512ifma vaes vpclmulqdq; do
    busybox grep -qw $feature /proc/cpuinfo || { echo "the emulated CPU has no $feature"; echo "avx512.sh: status 2"; busybox sleep 9999; }
done
status=0
INIT
    if [ -n "$script" ]; then
        cp "$script" "$root/run"
        echo 'sh /run || status=1'
    else
        printf 'for test in /tests/*; do\n    echo "== ${test##*/}"\n    "$test"'
        if [ ${#arguments[@]} -gt 0 ]; then printf ' %q' "${arguments[@]}"; fi
        printf '%s || status=1\n' "$runner"
        printf '    [ $status = 0 ] || echo "   failed: ${test##*/}"\ndone\n'
    fi
    cat <<'INIT'
echo "avx512.sh: status $status"
busybox sleep 9999
INIT
} >"$root/init"
chmod +x "$root/init"
mkdir "$work/iso"
(cd "$root" && find . | "$system/bin/busybox" cpio -o -H newc 2>/dev/null) >"$work/iso/initrd"
rm -rf "$root"
cp "$system"/boot/vmlinuz-* "$work/iso/vmlinuz"
cp "$system/usr/lib/ISOLINUX/isolinux.bin" "$system/usr/lib/syslinux/modules/bios/ldlinux.c32" "$work/iso/"

# Why each of these (Bochs 2.7, Linux 6.1):
#   clearcpuid  pku, ospke (515, 516), xsavec, xsaves (321, 323): CPUID leaf 13 is wrong for them, whereupon Linux turns XSAVE
#               off, and AVX-512 with it. aperfmperf (124): its registers are absent. fsrm (580): Linux's memmove wants erms
#               where it finds fsrm; Bochs offers the one alone, and copies of less than 32 bytes run off.
#   tsc_early_khz  the counter counts instructions; CPUID says 2.4 GHz, which would make each second of the kernel's time 2.4
#               thousand million of them. As many as Bochs's own clock has (ips below).
#   the rest    less hardware to look for, no mitigations.
cat >"$work/iso/isolinux.cfg" <<'CFG'
default linux
prompt 0
label linux
  kernel /vmlinuz
  append initrd=/initrd console=ttyS0,115200 quiet edd=off tsc_early_khz=20000 clearcpuid=515,516,124,321,323,580 acpi=off noapic nolapic nosmp mitigations=off nokaslr random.trust_cpu=on audit=0 apparmor=0
CFG
xorriso -as mkisofs -quiet -o "$work/boot.iso" -b isolinux.bin -c boot.cat -no-emul-boot -boot-load-size 4 -boot-info-table \
    "$work/iso" 2>/dev/null
rm -rf "$work/iso"

cat >"$work/bochsrc" <<RC
config_interface: textconfig
display_library: term
megs: 512
romimage: file=$bios/BIOS-bochs-latest
vgaromimage: file=$bios/VGABIOS-lgpl-latest
cpu: model=corei7_icelake_u, count=1, ips=20000000, reset_on_triple_fault=0
ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14
ata0-master: type=cdrom, path=$work/boot.iso, status=inserted
boot: cdrom
clock: sync=none
com1: enabled=1, mode=file, dev=$work/serial
log: $work/bochs.log
panic: action=fatal
error: action=report
info: action=ignore
debug: action=ignore
RC
# Debian's Bochs has its debugger built in, which waits for orders at the start.
commands=
if [[ $(bochs --help 2>&1 || true) = *"-rc "* ]]; then
    echo c >"$work/commands"
    commands="-rc $work/commands"
fi
# Bochs wants a terminal to draw on; `script` is one.
touch "$work/serial"
echo "== booting (at most $limit s)"
TERM=xterm setsid script -qec "echo \$\$ >$work/pid; exec bochs -q -f $work/bochsrc $commands" /dev/null \
    </dev/null >"$work/screen" 2>&1 &
emulator=$!

shown=0
show() {
    local size
    size=$(stat -c %s "$work/serial")
    if [ "$size" -gt "$shown" ]; then
        # What came meanwhile is left for the next time.
        dd if="$work/serial" iflag=skip_bytes,count_bytes bs=64K skip="$shown" count=$((size - shown)) status=none | tr -d '\r'
        shown=$size
    fi
}
end=$((SECONDS + limit))
while [ $SECONDS -lt $end ] && kill -0 "$emulator" 2>/dev/null && ! grep -aq '^avx512.sh: status' "$work/serial"; do
    sleep 1
    show
done
show
status=$(sed -n 's/^avx512.sh: status \([0-9]\).*/\1/p' "$work/serial")
if [ -z "$status" ]; then
    if [ $SECONDS -ge $end ]; then echo "no result after $limit s (LIMIT=)" >&2; else echo 'Bochs ended early' >&2; fi
    grep -v 'Unknown register' "$work/bochs.log" | tail -n 5 >&2 || true
    exit 2
fi
echo "== $SECONDS s"
exit "$status"
