#!/usr/bin/env bash
# The long tests of `wattlock mount`, with programs that this repository did not write.
#
#   scripts/soak/fs-suites.sh [PART...]     the parts; all of them if none is named. `make soak` runs all
#                                      (SOAK_PARTS=fs make soak: nothing else).
#
#   model       random operations beside an ordinary folder: MODEL_STEPS=20000 in each of nine runs
#   replace     files that are replaced, removed and moved beside four programs: REPLACE_OPERATIONS=500000 in each of
#               eight mounts, and git's readers beside a hundredth as many commits
#   owners      what an owner does to folders of all 512 modes, and in them, beside an ordinary folder
#   fsx         the fsx of cargo (FSX names one that is there): FSX_MINUTES=10, every chunk size, with kills in between
#   kills       WATTLOCK_KILLS=1000 kills in mid-write, every acknowledged byte remembered outside
#   cards       WATTLOCK_CARD_SECONDS=300 on an emulated card with every fault, another policy each second
#   postgres    PostgreSQL under pgbench: PG_ROUNDS=5 kills of the mount, recovery, amcheck, every acknowledged commit
#   sqlite      SQLITE_ROUNDS=20 kills of the mount under a writer: integrity_check, every acknowledged commit
#   build       this repository cloned, built and cleaned inside a mount, rsync -aHAX in both directions
#   cuts        CUTS=40 power cuts: ext4 on a loop device, some pages written, FS_IOC_SHUTDOWN, the process killed
#               (scripts/soak/cuts.py, as root; CUTS_SEED=N repeats one run)
#   full        a full disk, met before each step of a workload, on tmpfs and ext4 (scripts/soak/full.py, as root)
#   git         GIT_SECONDS=20 of readers beside commits; then git's own tests GIT_TESTS="t0*.sh t1*.sh t2*.sh t3*.sh", with
#               the installed git; GITSUITE=FOLDER is a built source of its version. What fails fails beside the mount, too
#   restic      a repository inside: backups, RESTIC_KILLS=5 kills of the mount in one, check --read-data, prune, restore
#   million     FILES=1000000 files: memory stays below 96 MiB and 512 bytes for each inode
#   pjdfstest   as root, with allow_other; PJDFSTEST=FOLDER is a built pjdfstest
#   xfstests    the quick group, as root; XFSTESTS=FOLDER is a built xfstests; QUICK= names other tests
#
# WATTLOCK names the program (default: target/release/wattlock), SUITES_DIR a folder for volumes (default: a new one in
# TMPDIR; its file system is what the volumes lie on). What cannot run here is named with the reason.
set -euo pipefail
here=$(realpath "$(dirname "$0")/../..")
cd "$here"
target=${CARGO_TARGET_DIR:-$here/target}
export WATTLOCK=${WATTLOCK:-$target/release/wattlock}
WATTLOCK=$(realpath "$WATTLOCK")
scratch=$(mktemp -d "${SUITES_DIR:-${TMPDIR:-/tmp}}/fs-suites.XXXXXX")
chmod 755 "$scratch"
export WATTLOCK_PROFILE=$scratch/profile.json WATTLOCK_TELEMETRY_DIR=$scratch/telemetry WATTLOCK_STATE_DIR=$scratch/state
key=$scratch/key.txt
skipped() { echo "skipped: $*"; }
fail() { echo "fs-suites: $*" >&2; exit 1; }

leave() {
    rm -f "${helper:-}"
    local at
    [ -z "${pg_pid:-}" ] || kill -QUIT "$pg_pid" 2>/dev/null || true
    for at in "$scratch"/*/mnt "$scratch"/*/mnt2 "$scratch"/cuts/disk; do
        if [ -d "$at" ] || ! stat "$at" >/dev/null 2>&1; then umount -l "$at" 2>/dev/null || true; fi
    done
    sleep 1
    rm -rf "$scratch"
}
trap leave EXIT

# A volume NAME, with more options of `fs init`, whose folder others may enter.
volume() {
    mkdir -p "$scratch/$1/mnt"
    "$WATTLOCK" fs init -r "$recipient" "${@:2}" "$scratch/$1/vol" >/dev/null
    chmod 755 "$scratch/$1/vol"
}
show() { "$WATTLOCK" mount -i "$key" "${@:2}" "$scratch/$1/vol" "$scratch/$1/mnt"; }
others() { [ "$(id -u)" != 0 ] || echo "-o allow_other"; }
hide() {
    local tries
    for tries in {1..50}; do
        ! "$WATTLOCK" umount "$scratch/$1/mnt" 2>/dev/null || return 0
        sleep .2
    done
    fail "$1 stays mounted"
}
sound() { "$WATTLOCK" fs check -i "$key" "$scratch/$1/vol" | tail -n 1; }
server() { "$WATTLOCK" fs status "$scratch/$1/mnt" | sed -n 's/^process \([0-9]*\).*/\1/p'; }
# Kills what serves a volume.
kill_server() {
    local pid
    pid=$(server "$1")
    kill -9 "$pid"
    while kill -0 "$pid" 2>/dev/null; do sleep .02; done
}
# Kills it, and takes the dead mount away.
shoot() {
    kill_server "$1"
    until umount -l "$scratch/$1/mnt" 2>/dev/null; do sleep .05; done
}
mount_tests() { cargo test --release --locked -p wattlock-cli --test mount -- "$@" --nocapture; }

part_model() { WATTLOCK_MODEL_STEPS=${MODEL_STEPS:-20000} mount_tests random_operations_give; }
part_replace() {
    WATTLOCK_REPLACE_OPERATIONS=${REPLACE_OPERATIONS:-500000} mount_tests nothing_fails_beside gits_readers
}
part_owners() { WATTLOCK_MODES=1 mount_tests owners; }
part_kills() { WATTLOCK_KILLS=${WATTLOCK_KILLS:-1000} mount_tests what_was_acknowledged_survives; }
part_cards() { WATTLOCK_CARD_SECONDS=${WATTLOCK_CARD_SECONDS:-300} mount_tests a_faulty_card; }

part_fsx() {
    local fsx=${FSX:-$target/tools/bin/fsx} end chunk mode round=0 seed
    if [ ! -x "$fsx" ]; then
        cargo install --locked --quiet --root "$target/tools" fsx --version 0.3.2 || { skipped "fsx: no program"; return; }
    fi
    cat >"$scratch/fsx.toml" <<'TOML'
flen = 2000000
[opsize]
max = 200000
[weights]
close_open = 2
read = 10
write = 10
mapread = 10
mapwrite = 10
invalidate = 1
truncate = 8
fsync = 1
fdatasync = 1
posix_fallocate = 4
punch_hole = 8
sendfile = 2
posix_fadvise = 2
copy_file_range = 6
TOML
    end=$((SECONDS + ${FSX_MINUTES:-10} * 60))
    for chunk in 4K 16K 64K 256K; do volume "fsx$chunk" --chunk "$chunk"; done
    while [ $SECONDS -lt $end ]; do
        for chunk in 4K 16K 64K 256K; do
            for mode in "" --shared; do
                round=$((round + 1)) seed=$((RANDOM * 32768 + RANDOM))
                show "fsx$chunk" $mode
                echo "fsx: chunks of $chunk ${mode:-cached}, seed $seed"
                "$fsx" -q -N 10000 -S $seed -f "$scratch/fsx.toml" -P "$scratch" "$scratch/fsx$chunk/mnt/f"
                # What fsx left is synced by its last close no more than anything: killed or not, the file is readable.
                if [ $((round % 3)) = 0 ]; then shoot "fsx$chunk"; else hide "fsx$chunk"; fi
                show "fsx$chunk"
                cat "$scratch/fsx$chunk/mnt/f" >/dev/null
                hide "fsx$chunk"
                sound "fsx$chunk"
            done
        done
    done
}

part_postgres() {
    local bin as=() pg=$scratch/pg/mnt/data log=$scratch/pg.log round acked there left
    bin=$(compgen -G '/usr/lib/postgresql/*/bin' | sort -V | tail -n 1) || { skipped "postgres: not installed"; return; }
    volume pg
    chmod 777 "$scratch/pg/vol"
    if [ "$(id -u)" = 0 ]; then
        id postgres >/dev/null 2>&1 || { skipped "postgres: no such user"; return; }
        as=(setpriv --reuid postgres --regid postgres --init-groups --)
    fi
    mkdir -m 777 "$scratch/socket"
    : >"$log" && chmod 666 "$log"
    start() {
        "${as[@]}" "$bin/pg_ctl" -D "$pg" -l "$log" -w -t 120 \
            -o "-k $scratch/socket -c listen_addresses='' -c shared_buffers=16MB" start >/dev/null || {
            tail -n 20 "$log"
            fail "PostgreSQL does not start"
        }
        pg_pid=$(sed -n 1p "$pg/postmaster.pid")
    }
    sql() { "${as[@]}" "$bin/psql" -h "$scratch/socket" -qAtX -v ON_ERROR_STOP=1 "$@" postgres; }
    show pg $(others)
    "${as[@]}" "$bin/initdb" -D "$pg" --auth=trust >/dev/null
    start
    "${as[@]}" "$bin/pgbench" -h "$scratch/socket" -i -q -s 5 postgres 2>/dev/null
    sql -c 'create extension amcheck; create table ledger(n bigint primary key)'
    : >"$scratch/acked"
    for ((round = 1; round <= ${PG_ROUNDS:-5}; round++)); do
        "${as[@]}" "$bin/pgbench" -n -h "$scratch/socket" -c 4 -T 60 postgres >/dev/null 2>&1 &
        # A commit that was acknowledged is written down outside the mount.
        (
            left=0
            while sql -c "insert into ledger values ($((round * 1000000 + left)))" 2>/dev/null; do
                echo $((round * 1000000 + left)) >>"$scratch/acked"
                left=$((left + 1))
            done
        ) &
        sleep "$((4 + round % 3))"
        shoot pg
        kill -QUIT "$pg_pid" 2>/dev/null || true
        while kill -0 "$pg_pid" 2>/dev/null; do sleep .1; done
        wait
        show pg $(others)
        start
        sort -n "$scratch/acked" >"$scratch/acked.sorted"
        sql -c 'select n from ledger order by n' >"$scratch/there"
        acked=$(wc -l <"$scratch/acked.sorted")
        there=$(sort "$scratch/there" | comm -23 <(sort "$scratch/acked.sorted") - | wc -l)
        [ "$there" = 0 ] || fail "round $round: $there of $acked acknowledged commits are gone"
        [ "$(sql -c 'select (select sum(abalance) from pgbench_accounts) = (select sum(bbalance) from pgbench_branches)
            and (select sum(abalance) from pgbench_accounts) = (select sum(tbalance) from pgbench_tellers)
            and (select sum(abalance) from pgbench_accounts) = (select coalesce(sum(delta), 0) from pgbench_history)')" = t ] ||
            fail "round $round: the balances differ"
        "${as[@]}" "$bin/pg_amcheck" -h "$scratch/socket" --heapallindexed postgres || fail "round $round: amcheck"
        echo "postgres: round $round: $acked acknowledged commits are there, amcheck finds nothing"
    done
    "${as[@]}" "$bin/pg_ctl" -D "$pg" -m fast stop >/dev/null
    pg_pid=
    hide pg
    sound pg
}

part_sqlite() {
    local round
    volume sqlite
    cat >"$scratch/writer.py" <<'PYTHON'
import os, sqlite3, sys
db = sqlite3.connect(sys.argv[1]); log = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
db.execute("pragma journal_mode=" + sys.argv[3]); db.execute("pragma synchronous=full")
db.execute("create table if not exists t(n integer primary key, v blob)")
n = db.execute("select coalesce(max(n), 0) from t").fetchone()[0]
while True:
    n += 1
    with db: db.execute("insert into t values (?, ?)", (n, bytes([n % 256]) * (n % 5000)))
    os.write(log, b"%d\n" % n)
PYTHON
    cat >"$scratch/reader.py" <<'PYTHON'
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
assert db.execute("pragma integrity_check").fetchone() == ("ok",), "integrity_check"
there = {n for n, in db.execute("select n from t")}
wanted = {int(line) for line in open(sys.argv[2])}
assert wanted <= there, f"{len(wanted - there)} acknowledged commits are gone"
assert not [n for n, v in db.execute("select n, v from t") if v != bytes([n % 256]) * (n % 5000)]
print(f"{len(wanted)} acknowledged commits are there")
PYTHON
    for mode in wal delete; do
        for ((round = 1; round <= ${SQLITE_ROUNDS:-20}; round++)); do
            show sqlite
            python3 "$scratch/writer.py" "$scratch/sqlite/mnt/$mode" "$scratch/$mode.log" $mode 2>/dev/null &
            sleep "1.$((RANDOM % 90 + 10))"
            shoot sqlite
            wait
            show sqlite
            if [ -s "$scratch/$mode.log" ]; then
                echo "sqlite: $mode, round $round: $(python3 "$scratch/reader.py" "$scratch/sqlite/mnt/$mode" "$scratch/$mode.log")"
            fi
            hide sqlite
        done
    done
    sound sqlite
}

part_build() {
    volume build
    show build
    git -c safe.directory='*' clone -q --no-hardlinks "$here" "$scratch/build/mnt/clone"
    (cd "$scratch/build/mnt/clone" && cargo build --locked -p wattlock-fs --target-dir target && cargo clean --target-dir target)
    git -C "$scratch/build/mnt/clone" -c safe.directory='*' fsck --no-progress
    [ -z "$(git -C "$scratch/build/mnt/clone" -c safe.directory='*' status --porcelain)" ] || fail "git sees changes"
    rsync -aHAX --modify-window=-1 "$scratch/build/mnt/clone/" "$scratch/out"
    rsync -aHAX --modify-window=-1 "$scratch/out/" "$scratch/build/mnt/back"
    hide build
    show build
    [ -z "$(rsync -aHAXni --checksum --modify-window=-1 "$scratch/out/" "$scratch/build/mnt/back")" ] || fail "rsync sees changes"
    hide build
    sound build
}

part_cuts() { python3 scripts/soak/cuts.py "$scratch/cuts" --cuts "${CUTS:-40}" ${CUTS_SEED:+--seed "$CUTS_SEED"}; }
part_full() { python3 scripts/soak/full.py "$scratch/full"; }

# Git's own tests, which work in a folder: what of them fails, a script and the numbers of its tests in each line.
git_tests() {
    (
        cd "$GITSUITE/t"
        export TEST_OUTPUT_DIRECTORY=$scratch/git-results GIT_TEST_INSTALLED=/usr/bin
        mkdir -p "$TEST_OUTPUT_DIRECTORY" "$1"
        prove -j "$(nproc)" --exec sh "${@:2}" :: --root="$1" 2>/dev/null || true
    ) >"$scratch/git.log"
    sed -nE -e 's/^(t[0-9].*\.sh) .*\(Wstat: ([0-9]+).*/\1 \2/p' -e 's/^  Failed tests?: */    /p' "$scratch/git.log"
    grep '^Files=' "$scratch/git.log" >&2
}

part_git() {
    local repo=$scratch/git/mnt/repo end commits=0 reads failed wrong=
    command -v git >/dev/null || { skipped "git: not installed"; return; }
    volume git
    show git
    git init -q "$repo"
    commit() { git -C "$repo" -c user.name=n -c user.email=e -c gc.auto=0 commit -q --allow-empty -m "$1"; }
    commit first
    end=$((SECONDS + ${GIT_SECONDS:-20}))
    : >"$scratch/git.said"
    (
        reads=0 failed=0
        while [ $SECONDS -lt $end ] && [ -e "$scratch/git.said" ]; do
            for words in "status --porcelain" "rev-parse --verify HEAD" "log -1 --oneline"; do
                reads=$((reads + 1))
                # shellcheck disable=SC2086 # words
                git --no-optional-locks -C "$repo" $words >/dev/null 2>>"$scratch/git.said" || failed=$((failed + 1))
            done
        done
        echo "$reads $failed" >"$scratch/git.reads"
    ) &
    while [ $SECONDS -lt $end ]; do
        commits=$((commits + 1))
        commit "$commits"
    done
    wait $!
    read -r reads failed <"$scratch/git.reads"
    echo "git: $failed of $reads readers failed beside $commits commits"
    [ "$failed" = 0 ] || wrong="readers beside commits: $(sort "$scratch/git.said" | uniq -c | sort -n | tail -n 3)"
    git -C "$repo" fsck --no-progress
    if [ -x "${GITSUITE:-}/t/helper/test-tool" ]; then
        git_suite || wrong+=" git's tests fail inside the mount and not beside it"
    else
        skipped "git's own tests: GITSUITE names no built source"
    fi
    hide git
    sound git
    [ -z "$wrong" ] || fail "git: $wrong"
}

# Runs them inside the mount; those that fail once more on the file system below. False if the failures differ.
git_suite() {
    local scripts failing inside beside=
    mapfile -t scripts < <(cd "$GITSUITE/t" && for one in ${GIT_TESTS:-t0*.sh t1*.sh t2*.sh t3*.sh}; do echo "$one"; done)
    inside=$(git_tests "$scratch/git/mnt/trash" "${scripts[@]}")
    mapfile -t failing < <(sed -n 's/^\(t[^ ]*\) .*/\1/p' <<<"$inside")
    [ ${#failing[@]} = 0 ] || beside=$(git_tests "$scratch/trash" "${failing[@]}")
    echo "git: ${#scripts[@]} scripts, ${#failing[@]} of them fail inside the mount: ${failing[*]:-none}"
    diff --label inside --label beside -U 1 <(echo "$inside") <(echo "$beside")
}

part_restic() {
    local tree=$scratch/tree round
    command -v restic >/dev/null || { skipped "restic: not installed"; return; }
    export RESTIC_REPOSITORY=$scratch/restic/mnt/repo RESTIC_PASSWORD=a RESTIC_CACHE_DIR=$scratch/restic-cache
    volume restic
    show restic
    mkdir "$tree"
    cp -a crates docs scripts "$tree"
    head -c 32M /dev/urandom >"$tree/random"
    change() {
        head -c 10M /dev/urandom >"$tree/more$1"
        echo "$1" >>"$tree/docs/README.md"
        rm -rf "$tree/more$(($1 - 2))"
    }
    whole() { restic check -q --read-data || fail "restic: check finds something $1"; }
    restic init -q
    restic backup -q "$tree"
    change 0
    restic backup -q "$tree"
    whole "after two backups"
    for ((round = 1; round <= ${RESTIC_KILLS:-5}; round++)); do
        change "$round"
        restic backup -q "$tree" >/dev/null 2>&1 &
        sleep "0.$((RANDOM % 9))$round"
        kill_server restic
        # It would go on trying, and write into the folder below.
        kill -9 $! 2>/dev/null || true
        wait $! 2>/dev/null || true
        until umount -l "$scratch/restic/mnt" 2>/dev/null; do sleep .05; done
        show restic
        restic unlock -q
        whole "after a kill"
        restic backup -q "$tree"
        whole "after the backup that follows a kill"
        echo "restic: round $round: killed in a backup, whole, backed up again"
    done
    restic forget -q --keep-last 1 --prune
    whole "after prune"
    hide restic
    show restic
    restic restore -q latest --target "$scratch/restored"
    diff -r --no-dereference "$tree" "$scratch/restored$tree" || fail "restic: what was restored is another tree"
    hide restic
    sound restic
}

part_million() {
    local files=${FILES:-1000000}
    volume million
    show million
    python3 - "$scratch/million/mnt" "$(server million)" "$files" <<'PYTHON'
import os, re, sys
root, pid, files = sys.argv[1], sys.argv[2], int(sys.argv[3])
def peak(what, inodes):
    kib = int(re.search(r"VmHWM:\s+(\d+)", open(f"/proc/{pid}/status").read())[1])
    allowed = 96 * 1024 + inodes // 2
    print(f"million: {what}: {kib / 1024:.0f} MiB at most, {allowed / 1024:.0f} allowed", flush=True)
    assert kib <= allowed
for folder in range(files // 1000):
    os.makedirs(f"{root}/{folder // 100}/{folder}", exist_ok=True)
    for i in range(1000):
        with open(f"{root}/{folder // 100}/{folder}/{i}", "wb") as file: file.write(b"x")
    if folder % 100 == 99: peak(f"{folder + 1},000 files made", (folder + 1) * 1000)
seen = 0
for folder, _, names in os.walk(root):
    for name in names: os.lstat(f"{folder}/{name}"); seen += 1
assert seen == files
peak("walked and looked at", files)
PYTHON
    hide million
}

part_pjdfstest() {
    [ "$(id -u)" = 0 ] || { skipped "pjdfstest: not root"; return; }
    [ -x "${PJDFSTEST:-}/pjdfstest" ] || { skipped "pjdfstest: PJDFSTEST names no built one"; return; }
    volume posix
    show posix -o allow_other,dev,suid
    # A link's target of 4,095 bytes does not fit when it is sealed: symlink/03.
    (cd "$scratch/posix/mnt" && prove -r "$PJDFSTEST/tests") >"$scratch/posix.log" 2>&1 || true
    sed -n '/^Test Summary/,$p' "$scratch/posix.log"
    hide posix
    sound posix
    [ "$(sed -n 's/^.*tests.\([a-z_]*.[0-9]*\)\.t .*Failed: [1-9].*/\1/p' "$scratch/posix.log" | tr '\n' ' ')" = "symlink/03 " ] ||
        fail "pjdfstest: other failures than symlink/03"
}

part_xfstests() {
    helper=/sbin/mount.fuse.wattlock
    [ "$(id -u)" = 0 ] || { skipped "xfstests: not root"; return; }
    [ -x "${XFSTESTS:-}/check" ] || { skipped "xfstests: XFSTESTS names no built one"; return; }
    volume xtest
    volume xscratch
    cat >"$helper" <<SH
#!/usr/bin/env bash
# Made by scripts/soak/fs-suites.sh for xfstests, and removed by it. Options that are not wattlock's are left out.
volume=\$1 dir=\$2 options= given=
shift 2
while [ \$# -gt 0 ]; do
    if [ "\$1" = -o ]; then given=\$given,\$2; shift; fi
    shift
done
for option in \${given//,/ }; do
    case \$option in
    remount) exec mount -i -o "\${given#,}" "\$dir" ;;
    allow_other | ro | rw | dev | nodev | suid | nosuid | exec | noexec | noatime | sync | dirsync) options=\$options,\$option ;;
    esac
done
[[ \$options = *nodev* ]] || options=,dev\$options
[[ \$options = *nosuid* ]] || options=,suid\$options
# The process of a mount that umount(8) took away may still be at work.
for try in {1..100}; do
    status=0
    "$WATTLOCK" mount -i "$key" -o "allow_other\$options" "\$volume" "\$dir" 2>"$scratch/said" || status=\$?
    [ \$status = 84 ] && { sleep .1; continue; }
    cat "$scratch/said" >&2
    exit \$status
done
exit 84
SH
    chmod 755 "$helper"
    cat >"$scratch/config" <<SH
export FSTYP=fuse FUSE_SUBTYP=.wattlock
export TEST_DEV=$scratch/xtest/vol TEST_DIR=$scratch/xtest/mnt
export SCRATCH_DEV=$scratch/xscratch/vol SCRATCH_MNT=$scratch/xscratch/mnt
SH
    # A copy that knows this file system's type, and unmounts by the folder, since the device is one, too.
    cp -a "$XFSTESTS" "$scratch/xfstests"
    sed -i -e "s#-e 's/fuse.ceph-fuse/ceph-fuse/'#& -e 's/fuse.wattlock/fuse/'#" \
        -e 's/_unmount \$SCRATCH_DEV$/_unmount $SCRATCH_MNT/' -e 's/_unmount "\?\$TEST_DEV"\?$/_unmount $TEST_DIR/' \
        "$scratch/xfstests/common/rc"
    sed -e 's/ *#.*//' -e '/^$/d' "$here/scripts/soak/xfstests.exclude" >"$scratch/exclude"
    (
        cd "$scratch/xfstests"
        HOST_OPTIONS=$scratch/config ./check -E "$scratch/exclude" ${QUICK:--g generic/quick}
    ) >"$scratch/xfstests.log" 2>&1 || true
    rm -f "$helper"
    umount "$scratch/xtest/mnt" "$scratch/xscratch/mnt" 2>/dev/null || true
    tail -n 3 "$scratch/xfstests.log" | cut -c 1-400
    [[ $(tail -n 3 "$scratch/xfstests.log") = *"Passed all"* ]] || fail "xfstests: see above"
}

[ -e /dev/fuse ] || { skipped "no /dev/fuse"; exit; }
[ -x "$WATTLOCK" ] || fail "$WATTLOCK is not there: make build"
"$WATTLOCK" keygen -o "$key" >/dev/null 2>&1
recipient=$(sed -n 's/^# public key: //p' "$key")
[ $# -gt 0 ] || set -- model replace owners fsx kills cards cuts full postgres sqlite git restic build million pjdfstest xfstests
for part in "$@"; do
    declare -F "part_$part" >/dev/null || fail "no part $part"
done
for part in "$@"; do
    echo "== $part (${SECONDS}s)"
    "part_$part"
done
echo "== done (${SECONDS}s): $*"
