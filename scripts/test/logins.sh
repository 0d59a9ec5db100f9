#!/usr/bin/env bash
# Logins through OpenSSH's server, whose unauthenticated part runs behind a seccomp filter that kills: five key exchanges,
# three host keys, three ciphers.
#
#   scripts/test/logins.sh CONFIGURATION     the server reads this openssl.cnf; the client reads none
#
# Prints one line for each login that failed, and "N of 45 logins". Needs root, sshd and ssh. The server listens on loopback
# and is ended. Exit status 77: something is not here.
set -euo pipefail
configuration=$(readlink -f "${1:?usage: scripts/test/logins.sh CONFIGURATION}")
server=$(command -v sshd || echo /usr/sbin/sshd)
missing() { echo "skipped: $1"; exit 77; }
[[ $(id -u) == 0 ]] || missing "only root can run sshd for logins"
[[ -x $server ]] || missing "no sshd here (openssh-server)"
command -v ssh >/dev/null || missing "no ssh here (openssh-client)"

folder=$(mktemp -d)
daemon=
end() {
    [[ -z $daemon ]] || kill "$daemon" 2>/dev/null || true
    rm -rf "$folder"
}
trap end EXIT
mkdir -p -m 755 /run/sshd

ssh-keygen -q -t ed25519 -N '' -f "$folder/client"
ssh-keygen -q -t rsa -b 2048 -N '' -f "$folder/rsa"
ssh-keygen -q -t ecdsa -b 256 -N '' -f "$folder/ecdsa"
ssh-keygen -q -t ed25519 -N '' -f "$folder/ed25519"
port=$((20000 + $$ % 10000))
cat > "$folder/sshd_config" <<END
ListenAddress 127.0.0.1
Port $port
PidFile none
AuthorizedKeysFile $folder/client.pub
StrictModes no
PermitRootLogin yes
UsePAM no
KexAlgorithms +diffie-hellman-group14-sha256
MaxStartups 100
HostKey $folder/rsa
HostKey $folder/ecdsa
HostKey $folder/ed25519
END
# Of OpenSSH 9.8 and later: a failure must not bar the logins behind it.
if OPENSSL_CONF=/dev/null "$server" -t -f "$folder/sshd_config" -o PerSourcePenalties=no 2>/dev/null; then
    echo PerSourcePenalties no >> "$folder/sshd_config"
fi
OPENSSL_CONF=$configuration "$server" -D -f "$folder/sshd_config" -E "$folder/log" &
daemon=$!
for _ in $(seq 100); do
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && break
    sleep 0.1
done

good=0
for exchange in curve25519-sha256 ecdh-sha2-nistp256 ecdh-sha2-nistp384 diffie-hellman-group14-sha256 \
    sntrup761x25519-sha512@openssh.com; do
    for key in rsa-sha2-512 ecdsa-sha2-nistp256 ssh-ed25519; do
        for cipher in aes256-gcm@openssh.com aes128-ctr chacha20-poly1305@openssh.com; do
            if said=$(OPENSSL_CONF=/dev/null timeout 20 ssh -F none -p "$port" -i "$folder/client" -o BatchMode=yes \
                -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o KexAlgorithms=$exchange \
                -o HostKeyAlgorithms=$key -o Ciphers=$cipher root@127.0.0.1 echo in 2>&1 </dev/null) \
                && [[ $said == *in ]]; then
                good=$((good + 1))
            else
                echo "$exchange $key $cipher: $(tail -n 1 <<< "$said")"
            fi
        done
    done
done
grep -E 'terminated by signal|crash' "$folder/log" | sort | uniq -c || true
echo "$good of 45 logins"
[[ $good == 45 ]]
