#!/usr/bin/env bash
# scripts/release/sign.sh with throwaway keys: what was signed is verified, and anything that was altered is refused.
set -euo pipefail
sign=$(realpath "$(dirname "$0")/sign.sh")
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"
for name in ours other; do ssh-keygen -q -t ed25519 -N '' -C "$name" -f $name; done
echo "release@wattlock.invalid namespaces=\"git,wattlock-release\" $(cut -d' ' -f1,2 ours.pub)" >signers
count=0

fresh() {
    rm -rf files
    mkdir files
    head -c 5000 /dev/urandom >files/wattlock_0.1.0~deb12_amd64.deb
    head -c 5000 /dev/urandom >files/wattlock-0.1.0-oci.tar
    (cd files && sha256sum -- * >SHA256SUMS)
    "$sign" sign ours files >/dev/null
}
# It must fail, and say so in one of its own lines.
refused() {
    local words=$1 status=0
    shift
    "$@" >said 2>&1 || status=$?
    if [ $status = 0 ] || ! grep -F "$words" said >/dev/null; then
        echo "sign: not refused with \"$words\" (exit code $status): $*" >&2
        cat said >&2
        exit 1
    fi
    count=$((count + 1))
}
again() { fresh && "$@" && refused "$words" "$sign" verify signers files; }
# One bit of one byte.
altered() {
    local byte
    byte=$(od -An -tu1 -j1234 -N1 "$1")
    printf "\\x$(printf %02x $((byte ^ 1)))" | dd of="$1" bs=1 seek=1234 conv=notrunc status=none
}
listed() { (cd files && sha256sum -- *.deb *.tar >SHA256SUMS); }
both() { altered files/wattlock-0.1.0-oci.tar && listed; }
signed() {
    rm files/SHA256SUMS.sig
    ssh-keygen -Y sign -q -f "$1" -n "$2" files/SHA256SUMS
}

fresh
"$sign" verify signers files >/dev/null
words='not the files that were listed' again altered files/wattlock-0.1.0-oci.tar
words='is not signed' again both
words='is not signed' again sed -i '1s/^./g/' files/SHA256SUMS.sig
words='no signature' again rm files/SHA256SUMS.sig
words='not the files' again rm files/wattlock-0.1.0-oci.tar
words='not in SHA256SUMS' again touch files/wattlock_0.1.1_amd64.deb
words='not in SHA256SUMS' again touch files/.hidden
words='no plain file' again mkdir files/more
# Another key, and the same key for another purpose.
words='is not signed' again signed other wattlock-release
words='is not signed' again signed ours git
# What is not to be signed.
fresh
echo x >>files/wattlock-0.1.0-oci.tar
refused 'not the files' "$sign" sign ours files
fresh
(cd files && sha256sum ../signers >>SHA256SUMS)
refused 'plain names' "$sign" sign ours files
fresh
: >files/SHA256SUMS
refused 'plain names' "$sign" sign ours files
echo "sign: one folder verified, $count altered ones refused"
