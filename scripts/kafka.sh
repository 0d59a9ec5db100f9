#!/usr/bin/env bash
# One node of Apache Kafka in KRaft mode on loopback, for tests and demonstrations.
#
#   scripts/kafka.sh jars               fetches it with Maven unless it is there, and prints the folder of its jars
#   scripts/kafka.sh start DIR PORT     starts a node whose data are in DIR, and returns when it answers; it listens at
#                                       PORT, at PORT+1 (its controller), and at PORT+2, where it says that it is at PORT+3
#   scripts/kafka.sh stop|kill DIR      stops it in order, or at once
#
# WATTLOCK_KAFKA is the folder of the jars; without it they are kept in the user's cache, outside this repository.
# Exit code 3: Java or Maven is missing.
set -euo pipefail
version=4.1.0
jars=${WATTLOCK_KAFKA:-${XDG_CACHE_HOME:-$HOME/.cache}/wattlock/kafka-$version}

fetch() {
    command -v java >/dev/null || { echo "kafka.sh: no java" >&2; exit 3; }
    [ -e "$jars/.whole" ] && return
    command -v mvn >/dev/null || { echo "kafka.sh: no mvn, and no jars in $jars" >&2; exit 3; }
    local scratch artifact
    scratch=$(mktemp -d)
    {
        echo '<project><modelVersion>4.0.0</modelVersion><groupId>w</groupId><artifactId>w</artifactId><version>1</version>'
        echo '<dependencies>'
        for artifact in kafka_2.13 kafka-tools; do
            echo "<dependency><groupId>org.apache.kafka</groupId><artifactId>$artifact</artifactId><version>$version</version></dependency>"
        done
        echo '</dependencies></project>'
    } >"$scratch/pom.xml"
    mkdir -p "$jars"
    (cd "$scratch" && mvn -q -B dependency:copy-dependencies -DoutputDirectory="$jars") >&2
    touch "$jars/.whole"
    rm -r "$scratch"
}

# A broker's and a tool's Java: quick to start, small.
run_java() {
    java -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -cp "$jars/*" "$@"
}

start() {
    local dir=$1 port=$2 tries=0
    mkdir -p "$dir"
    cat >"$dir/server.properties" <<END
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:$((port + 1))
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$((port + 1)),PROXIED://127.0.0.1:$((port + 2))
advertised.listeners=PLAINTEXT://127.0.0.1:$port,PROXIED://127.0.0.1:$((port + 3))
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED:PLAINTEXT
log.dirs=$dir/data
auto.create.topics.enable=false
# Records of tests have times of their own, which may be long ago.
log.retention.ms=-1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
num.network.threads=1
num.io.threads=2
log.cleaner.dedupe.buffer.size=2097152
END
    if [ ! -e "$dir/data/meta.properties" ]; then
        run_java kafka.tools.StorageTool format --standalone -t d2F0dGxvY2std2F0dGxvYw -c "$dir/server.properties" \
            >"$dir/format.log" 2>&1 || { cat "$dir/format.log" >&2; exit 1; }
    fi
    setsid java -Xms64m -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -cp "$jars/*" kafka.Kafka \
        "$dir/server.properties" >>"$dir/broker.log" 2>&1 </dev/null &
    echo $! >"$dir/broker.pid"
    # It listens to clients when everything else has started.
    until (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do
        tries=$((tries + 1))
        if [ $tries -gt 600 ] || ! kill -0 "$(cat "$dir/broker.pid")" 2>/dev/null; then
            tail -n 20 "$dir/broker.log" >&2
            exit 1
        fi
        sleep 0.3
    done
}

# Ends what `start` started, and waits until it is gone.
end() {
    local pid
    pid=$(cat "$2/broker.pid" 2>/dev/null) || return 0
    kill "$1" "$pid" 2>/dev/null || true
    while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
    rm -f "$2/broker.pid"
}

case ${1:-} in
    jars) fetch && echo "$jars" ;;
    start) fetch && start "$2" "$3" ;;
    stop) end -TERM "$2" ;;
    kill) end -KILL "$2" ;;
    *)
        echo "kafka.sh jars | start DIR PORT | stop DIR | kill DIR" >&2
        exit 2
        ;;
esac
