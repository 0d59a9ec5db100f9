"""Two bridges of one Kafka broker, one that seals and one that opens: each record once and in order, whoever is killed."""

import os
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.request

from desk import REPO, NotHere, Wrong, few_descriptors, kill, last, leaking, wait_for

BURST = 2000
#: What librdkafka's queues may still take after the first rounds.
ROOM = 24 << 20


def six_ports():
    """Ports in a row that nobody has now, below those that the kernel gives to connections."""
    for first in range(20_000 + os.getpid() % 1300 * 6, 32_000, 6):
        try:
            for port in range(first, first + 8):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            return first
        except OSError:
            continue
    raise NotHere("no ports")


class Bridge:
    name = "bridge"
    demands = ("bridge: quiet moments", "bridge: kill -9", "bridge: few descriptors", "bridge: settings changed")
    demands_disk = ()

    def __init__(self, desk, watch):
        if not desk.bridge.exists():
            raise NotHere("the bridge is not built (make bridge)")
        script = REPO / "scripts/setup/kafka.sh"
        jars = subprocess.run([script, "jars"], capture_output=True, text=True)
        if jars.returncode != 0:
            raise NotHere(f"no broker: {jars.stderr.strip()[-200:]}")
        self.desk, self.watch, self.dice, self.script = desk, watch, desk.dice(self.name), script
        self.folder = desk.folder / "bridge"
        self.folder.mkdir()
        self.port = six_ports()
        self.bridges, self.tools = {}, []
        self.wrong, self.next, self.read = None, 0, 0

    def run(self):
        self.start()
        life = min(300, max(20, self.desk.seconds / 5))
        turn = 0
        while self.desk.going():
            end, rounds = time.monotonic() + life, 0
            while self.desk.going() and (time.monotonic() < end or rounds <= self.watch.LEAST):
                self.quiet()
                rounds += 1
                if rounds % 4 == 2:
                    self.few()
            self.killed(("seal", "open")[turn % 2])
            turn += 1

    def close(self):
        for child in [*self.bridges.values(), *self.tools]:
            if child.poll() is None:
                child.kill()
                child.wait()
        subprocess.run([self.script, "kill", self.folder / "broker"], capture_output=True)

    def tool(self, name, *words, **more):
        return subprocess.Popen([self.script, "tool", f"org.apache.kafka.tools.{name}", "--bootstrap-server",
                                 f"127.0.0.1:{self.port}", *words], **more)

    def start(self):
        started = subprocess.run([self.script, "start", self.folder / "broker", str(self.port)], capture_output=True, text=True)
        if started.returncode != 0:
            raise Wrong(f"the broker does not start: {started.stderr[-300:]}")
        for topic in ("clear", "sealed", "opened"):
            made = self.tool("TopicCommand", "--create", "--topic", topic, "--partitions", "1", stdout=subprocess.DEVNULL,
                             stderr=subprocess.PIPE)
            if made.wait(120) != 0:
                raise Wrong(f"topic {topic}: {last(made.stderr.read())}")
        for task in ("seal", "open"):
            self.bridge(task)
        log = open(self.folder / "tools.log", "wb")
        self.producer = self.tool("ConsoleProducer", "--topic", "clear", stdin=subprocess.PIPE, stdout=log, stderr=log)
        self.consumer = self.tool("consumer.ConsoleConsumer", "--topic", "opened", "--from-beginning", "--isolation-level",
                                  "read_committed", stdout=subprocess.PIPE, stderr=log)
        self.tools = [self.producer, self.consumer]
        threading.Thread(target=self.follow, daemon=True).start()

    def bridge(self, task):
        """Starts one, each time with other settings."""
        source, to, keys = ("clear", "sealed", f'recipients = ["{self.desk.recipient}"]') if task == "seal" else (
            "sealed", "opened", f'identities = ["{self.desk.key}"]')
        address = f"127.0.0.1:{self.port + (6 if task == 'seal' else 7)}"
        (self.folder / f"{task}.toml").write_text(
            f'group = "{task}"\ninstance = "{task}"\nstatus = "{address}"\n'
            f'window = {self.dice.choice((8, 16, 64)) << 20}\n'
            f'[transaction]\nrecords = {self.dice.choice((100, 1000, 65536))}\nhold_ms = {self.dice.choice((5, 50))}\n'
            f'[kafka]\n"bootstrap.servers" = "127.0.0.1:{self.port}"\n[keys]\ntopic = "keys"\n{keys}\n'
            f'[[topic]]\nfrom = "{source}"\nto = "{to}"\ndo = "{task}"\n')
        said = open(self.folder / f"{task}.err", "ab")
        self.bridges[task] = subprocess.Popen([self.desk.bridge, "--config", self.folder / f"{task}.toml"],
                                              env={**self.desk.env, **leaking(self.desk)}, stdin=subprocess.DEVNULL, stderr=said)
        self.base = {**getattr(self, "base", {}), task: None}
        self.desk.notes.add("bridge: settings changed")

    def record(self, number):
        return f"{number} {'x' * (number * 7919 % 900)} {number}".encode()

    def follow(self):
        try:
            for line in self.consumer.stdout:
                self.desk.compare(f"record {self.read} of the topic", self.record(self.read), line.rstrip(b"\n"))
                self.read += 1
        except Wrong as error:
            self.wrong = error

    def produce(self, count):
        try:
            for number in range(self.next, self.next + count):
                self.producer.stdin.write(self.record(number) + b"\n")
            self.producer.stdin.flush()
        except OSError as error:
            raise Wrong(f"Kafka's producer is gone: {error}") from None
        self.next += count

    def all_through(self):
        def there():
            if self.wrong:
                raise self.wrong
            for task, child in self.bridges.items():
                if child.poll() is not None:
                    raise Wrong(f"the bridge that is to {task} ended: {child.returncode}: "
                                f"{last((self.folder / f'{task}.err').read_bytes())}")
            return self.read == self.next

        wait_for(there, f"{self.next} records to come through ({self.read} came)", 240)

    def counted(self, task):
        address = f"http://127.0.0.1:{self.port + (6 if task == 'seal' else 7)}/metrics"
        with urllib.request.urlopen(address, timeout=20) as answer:
            text = answer.read().decode()
        return int(re.search(rf'^wattlock_bridge_records_total\{{.*do="{task}"\}} (\d+)', text, re.M)[1])

    def quiet(self):
        """A burst; then all of it is there once, and each bridge has counted each record that it committed."""
        self.produce(BURST)
        self.all_through()
        for task in self.bridges:
            if self.base[task] is not None:
                base, before = self.base[task]
                # The last transaction is counted when it is committed, which readers may see first.
                wanted = self.next - before
                wait_for(lambda: self.counted(task) - base >= wanted, f"the bridge to {task} to count {wanted} records", 20)
                self.desk.equal(f"records of the bridge to {task}", wanted, self.counted(task) - base)
            else:
                time.sleep(0.5)
            self.base[task] = self.counted(task), self.next
            self.watch.sample(f"bridge: {task}", self.bridges[task].pid, ROOM)
        self.desk.notes.add("bridge: quiet moments")

    def few(self):
        """Connections that it has go on."""
        with few_descriptors([child.pid for child in self.bridges.values()], 0):
            self.produce(BURST)
            self.all_through()
        self.desk.notes.add("bridge: few descriptors")

    def killed(self, task):
        """Killed in the middle of a transaction, and started again with other settings."""
        self.produce(BURST)
        time.sleep(self.dice.random())
        kill(self.bridges[task].pid)
        self.bridges[task].wait()
        self.produce(BURST)
        self.bridge(task)
        self.desk.notes.add("bridge: kill -9")
        self.all_through()
