#!/usr/bin/env bash
# One node of Apache Kafka in KRaft mode on loopback, for tests and demonstrations.
#
#   scripts/setup/kafka.sh jars               fetches it with Maven unless it is there, and prints the folder of its jars
#   scripts/setup/kafka.sh start DIR PORT     starts a node whose data are in DIR, and returns when it answers; it listens at
#                                       PORT, at PORT+1 (its controller), at PORT+2, where it says that it is at PORT+3,
#                                       at PORT+4 (TLS, to clients with a certificate of DIR/tls/ca.crt) and at PORT+5
#                                       (TLS with SASL: PLAIN and SCRAM-SHA-512, user "bridge", password "a word")
#   scripts/setup/kafka.sh stop|kill DIR      stops it in order, or at once
#   scripts/setup/kafka.sh tool CLASS ...     runs one of Kafka's own tools
#
# WATTLOCK_KAFKA is the folder of the jars; without it they are kept in the user's cache, outside this repository.
# Exit code 3: Java, Maven or openssl is missing.
set -euo pipefail
version=4.1.0
jars=${WATTLOCK_KAFKA:-${XDG_CACHE_HOME:-$HOME/.cache}/wattlock/kafka-$version}

fetch() {
    local program
    for program in java openssl; do
        command -v $program >/dev/null || { echo "kafka.sh: no $program" >&2; exit 3; }
    done
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

# An authority, what it gives a broker and a client, and another authority that neither knows.
certificates() {
    local name
    mkdir -p "$1"
    for name in ca other; do
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj "/CN=$name" \
            -keyout "$1/$name.key" -out "$1/$name.crt"
    done
    for name in broker client; do
        openssl req -x509 -CA "$1/ca.crt" -CAkey "$1/ca.key" -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes \
            -days 3650 -subj "/CN=$name" -addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=CA:FALSE \
            -keyout "$1/$name.key" -out "$1/$name.crt"
    done
    cat "$1/broker.key" "$1/broker.crt" >"$1/broker.pem"
}

start() {
    local dir=$1 port=$2 tries=0
    mkdir -p "$dir"
    [ -e "$dir/tls/broker.pem" ] || certificates "$dir/tls" 2>"$dir/tls.log" || { cat "$dir/tls.log" >&2; exit 1; }
    cat >"$dir/server.properties" <<END
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:$((port + 1))
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$((port + 1)),PROXIED://127.0.0.1:$((port + 2)),\\
  TLS://127.0.0.1:$((port + 4)),LOGIN://127.0.0.1:$((port + 5))
advertised.listeners=PLAINTEXT://127.0.0.1:$port,PROXIED://127.0.0.1:$((port + 3)),\\
  TLS://127.0.0.1:$((port + 4)),LOGIN://127.0.0.1:$((port + 5))
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED:PLAINTEXT,TLS:SSL,LOGIN:SASL_SSL
ssl.keystore.type=PEM
ssl.keystore.location=$dir/tls/broker.pem
ssl.truststore.type=PEM
ssl.truststore.location=$dir/tls/ca.crt
listener.name.tls.ssl.client.auth=required
listener.name.login.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512
listener.name.login.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\
  user_bridge="a word";
listener.name.login.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
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
            --add-scram 'SCRAM-SHA-512=[name=bridge,password="a word"]' >"$dir/format.log" 2>&1 || { cat "$dir/format.log" >&2; exit 1; }
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
    tool) shift && run_java "$@" ;;
    *)
        echo "kafka.sh jars | start DIR PORT | stop DIR | kill DIR | tool CLASS ..." >&2
        exit 2
        ;;
esac
