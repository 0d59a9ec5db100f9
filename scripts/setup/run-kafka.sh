#!/usr/bin/env bash
# A Kafka topic sealed and opened on its way, for `make run`: scripts/setup/run-kafka.sh WATTLOCK FOLDER KEY
#
# Kafka's own tools write to the first topic and read the last. Some 30 seconds. Exit code 3: something that it needs is
# missing; the one line of output then says what.
set -euo pipefail
cd "$(dirname "$0")/../.."
wattlock=$1 folder=$2 key=$3
broker=$folder/broker
port=$((20000 + RANDOM % 1300 * 6))
missing() { echo "$*"; exit 3; }

command -v java >/dev/null || missing "no java (apt-get install default-jre-headless)"
[ -x "$(dirname "$(realpath "$wattlock")")/../bridge/release/wattlock-bridge" ] ||
    missing "the bridge is not built (make bridge: some minutes, once)"
# The first time, 43 MB are fetched.
timeout 180 scripts/setup/kafka.sh jars >"$folder/log" 2>&1 || missing "Kafka's jars could not be had: $(tail -n 1 "$folder/log")"

bridges=()
cleanup() {
    # In order, while the broker is there.
    for bridge in "${bridges[@]}"; do kill "$bridge" 2>/dev/null && wait "$bridge" || true; done
    scripts/setup/kafka.sh kill "$broker"
}
trap cleanup EXIT
scripts/setup/kafka.sh start "$broker" "$port"
tool() { timeout 120 scripts/setup/kafka.sh tool "org.apache.kafka.tools.$1" --bootstrap-server "127.0.0.1:$port" "${@:2}"; }
for topic in orders orders.sealed orders.opened; do
    tool TopicCommand --create --topic $topic --partitions 1 >"$folder/log" 2>&1 || { cat "$folder/log" >&2; exit 1; }
done
# What the two bridges are told; the one that seals needs no identity.
recipient=$(sed -n 's/^# public key: //p' "$key")
for task in seal open; do
    from=orders to=orders.sealed keys="recipients = [\"$recipient\"]"
    [ $task = seal ] || from=orders.sealed to=orders.opened keys="identities = [\"$key\"]"
    printf '%s\n' "group = \"$task\"" '[kafka]' "\"bootstrap.servers\" = \"127.0.0.1:$port\"" \
        '[keys]' 'topic = "orders.keys"' "$keys" \
        '[[topic]]' "from = \"$from\"" "to = \"$to\"" "do = \"$task\"" >"$folder/$task.toml"
    "$wattlock" stream bridge --config "$folder/$task.toml" 2>>"$folder/bridges" &
    bridges+=($!)
done
seq -f 'order %.0f: a record that only the bridge reads in the clear' 10000 >"$folder/orders"
tool ConsoleProducer --topic orders <"$folder/orders" >"$folder/log" 2>&1 || { cat "$folder/log" >&2; exit 1; }
read_topic() {
    tool consumer.ConsoleConsumer --topic "$1" --from-beginning --max-messages 10000 --timeout-ms 60000 \
        --isolation-level read_committed 2>"$folder/log"
}
read_topic orders.opened >"$folder/opened" || { cat "$folder/log" "$folder/bridges" >&2; exit 1; }
cmp "$folder/orders" "$folder/opened"
clear=$(cat "$broker"/data/orders.sealed-0/*.log | grep -ac 'a record that only' || true)
[ "$clear" = 0 ] || { echo "the sealed topic has records in the clear" >&2; exit 1; }
echo "10,000 records of a Kafka topic, sealed on the way to a second topic and opened on the way to a third, came out as" \
    "they went in; the second topic's segments have none of them in the clear"
