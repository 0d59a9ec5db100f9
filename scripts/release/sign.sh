#!/usr/bin/env bash
# Signs the files of a release, and verifies them: SHA256SUMS of a folder by an SSH key (`ssh-keygen -Y`), the files by
# SHA256SUMS.
#
#   scripts/release/sign.sh sign KEY FOLDER...          writes FOLDER/SHA256SUMS.sig. KEY is a private key, or a public one
#                                                       whose private one ssh-agent or a token has
#   scripts/release/sign.sh verify SIGNERS FOLDER...    SIGNERS is scripts/release/allowed_signers of a tree that you trust
#
# Both refuse a folder in which a file is altered, missing, or not in its list: nobody is to install what no one signed.
set -euo pipefail
identity=release@wattlock.invalid namespace=wattlock-release
fail() { echo "sign: $*" >&2; exit 1; }

# Whether the folder holds the files of its list, unaltered, and nothing else. In a subshell: it changes folders.
whole() (
    cd "$1"
    [ -f SHA256SUMS ] && [ ! -L SHA256SUMS ] || fail "$1: no SHA256SUMS"
    # Plain names only: no list reaches out of its folder.
    if grep -vE '^[0-9a-f]{64} [ *][A-Za-z0-9][A-Za-z0-9._+~-]*$' SHA256SUMS >&2 || [ ! -s SHA256SUMS ]; then
        fail "$1/SHA256SUMS: not a list of checksums and plain names"
    fi
    sha256sum --check --strict --quiet SHA256SUMS >&2 || fail "$1: not the files that were listed"
    for name in * .[!.]*; do
        case $name in SHA256SUMS | SHA256SUMS.sig | '*' | '.[!.]*') continue ;; esac
        [ -f "$name" ] && [ ! -L "$name" ] || fail "$1/$name: no plain file"
        cut -c67- SHA256SUMS | grep -Fxc -- "$name" >/dev/null || fail "$1/$name: not in SHA256SUMS"
    done
)

verify() {
    [ -f "$2/SHA256SUMS.sig" ] || fail "$2: no signature (SHA256SUMS.sig)"
    ssh-keygen -Y verify -f "$1" -I "$identity" -n "$namespace" -s "$2/SHA256SUMS.sig" <"$2/SHA256SUMS" >/dev/null ||
        fail "$2: SHA256SUMS is not signed by $identity of $1"
    whole "$2"
}

[ $# -ge 3 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
what=$1 key=$2
shift 2
[ -f "$key" ] || fail "$key: no such file"
for folder; do
    case $what in
    sign)
        whole "$folder"
        rm -f "$folder/SHA256SUMS.sig"
        ssh-keygen -Y sign -q -f "$key" -n "$namespace" "$folder/SHA256SUMS"
        echo "signed $folder/SHA256SUMS"
        ;;
    verify)
        verify "$key" "$folder"
        echo "verified $folder: $(wc -l <"$folder/SHA256SUMS") files"
        ;;
    *) fail "sign or verify, not $what" ;;
    esac
done
