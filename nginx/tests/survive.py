#!/usr/bin/env python3
"""What nginx with the Wattlock module must survive, against the real nginx.

    survive.py NAME [--nginx PROGRAM] [--module M.so] [--provider P.so] [--count N]
                    [--under COMMAND --single --patience SECONDS]

Each scenario starts an nginx of its own on a loopback port, does its worst, and then demands: no failed request that
was not provoked, no handshake left over, nothing left in flight, and a worker that still serves. Standard library only.
Scenarios are the functions whose names begin with `case_`; `survive.py list` names them.
"""

import argparse
import atexit
import base64
import contextlib
import functools
import http.client
import itertools
import json
import os
import random
import select
import resource
import shutil
import shlex
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ARGS = None
# What lanes do curves with.
IFMA = " avx512ifma" in Path("/proc/cpuinfo").read_text()
CLIENT = ssl.create_default_context()
CLIENT.check_hostname = False
CLIENT.verify_mode = ssl.CERT_NONE
# Whatever this OpenSSL prefers, by which handshakes are told from those of other clients.
CLIENT.set_ecdh_curve("X25519")

# A card that takes 20 ms: a handshake that waits for it can be interrupted.
SLOW_CARD = """name slow-card
window 256 requests 4194304 bytes
pool public-key 64 servers
table rsa-2048-private,ecdsa-p256-sign,p256-derive,p256-generate,x25519-derive,x25519-generate 0:20000000
"""
# One that answers in 200 us, to be broken.
CARD = SLOW_CARD.replace("20000000", "200000").replace("slow-card", "card")

# Signatures are all checked before they leave; of agreed secrets, which only doing the work again could check, a share.
SIGNING_CARD = CARD.replace(",ecdsa-p256-sign,p256-derive,p256-generate,x25519-derive,x25519-generate", "")

# A card that seals the records of answers, each in 20 ms, and signs.
SEALING_CARD = SLOW_CARD.replace(",ecdsa-p256-sign,p256-derive,p256-generate,x25519-derive,x25519-generate", "")
SEALING_CARD += "pool records 64 servers\ntable aes-128-gcm-seal,aes-256-gcm-seal,aes-128-cbc-encrypt 0:20000000\n"

# What a worker counts of handshakes and batches.
COUNTED = ("handshakes", "in_handshake", "completed", "aborted", "paused", "polls", "flushes", "looks", "writes_paused")
# And of clients' handshakes that completed, by group.
GROUPS = ("group_x25519mlkem768", "group_x25519", "group_p256", "group_other", "group_none")


def free_port():
    """Below those that the kernel gives to connections (ip(7)): one of these would be gone as soon as anybody connects from it."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(1000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", random.randrange(20000, first) if first > 21000 else 0))
            return probe.getsockname()[1]
    raise OSError("no port is free")


class NotRun(Exception):
    """What a scenario needs is not here."""


class Nginx:
    """One nginx in a folder of its own."""

    def __init__(self, http="", server="", main="", events="worker_connections 2048;", provider="", module=None,
                 workers=1, certificate="rsa:2048", before=()):
        """`before`: words of a command in front of nginx's own."""
        library = Path(ARGS.provider)
        if "emulate" in provider + http:
            # The provider with emulated cards is another file.
            library = library.with_name("libwattlock_emulated.so")
            assert library.exists(), f"{library}: cargo build -p wattlock-emulated"
        self.before = before or shlex.split(ARGS.under)
        self.folder = Path(tempfile.mkdtemp(prefix="wattlock-nginx-"))
        self.folder.chmod(0o755)
        self.port = free_port()
        (self.folder / "logs").mkdir()
        (self.folder / "html").mkdir()
        (self.folder / "html/index.html").write_text("ok\n")
        (self.folder / "html/big").write_bytes(os.urandom(300_000))
        (self.folder / "openssl.cnf").write_text(
            "openssl_conf = init\n[init]\nproviders = providers\nalg_section = properties\n"
            "[properties]\ndefault_properties = ?provider=wattlock\n"
            "[providers]\ndefault = default_provider\nwattlock = wattlock_provider\n[default_provider]\nactivate = 1\n"
            f"[wattlock_provider]\nmodule = {library}\nactivate = 1\npause = always\n{provider}\n")
        subprocess.run(["openssl", "req", "-x509", "-newkey", *certificate.split(), "-nodes", "-keyout",
                        self.folder / "key.pem", "-out", self.folder / "cert.pem", "-subj", "/CN=localhost",
                        "-days", "2"], check=True, capture_output=True)
        self.conf = self.folder / "nginx.conf"
        self.write(http, server, main, events, module or ARGS.module, workers)
        self.env = {**os.environ, "OPENSSL_CONF": str(self.folder / "openssl.cnf")}

    def write(self, http, server, main, events, module, workers):
        d = self.folder
        self.conf.write_text(f"""
load_module {module};
worker_processes {workers};
pid {d}/nginx.pid;
error_log {d}/logs/error.log notice;
env OPENSSL_CONF;
{"daemon off; master_process off;" if ARGS.single else ""}
{main}
events {{ {events} }}
http {{
  access_log off;
  client_body_temp_path {d}/body; proxy_temp_path {d}/proxy; fastcgi_temp_path {d}/fastcgi;
  uwsgi_temp_path {d}/uwsgi; scgi_temp_path {d}/scgi;
  wattlock on;
  {http}
  server {{
    listen 127.0.0.1:{self.port} ssl;
    ssl_certificate {d}/cert.pem;
    ssl_certificate_key {d}/key.pem;
    ssl_protocols TLSv1.2 TLSv1.3;
    ssl_session_cache off;
    root {d}/html;
    location = /status {{ wattlock_status; }}
    {server}
  }}
}}
""")

    def __enter__(self):
        # A binary upgrade executes the name it was started by: a path.
        command = [*self.before, ARGS.nginx, "-c", self.conf, "-p", self.folder]
        if ARGS.single:
            self.process = subprocess.Popen(command, env=self.env)
        else:
            started = subprocess.run(command, env=self.env, capture_output=True, text=True)
            if started.returncode != 0:
                raise SystemExit(f"nginx did not start: {started.stderr}")
        try:
            wait_for(lambda: self.get("/") == b"ok\n", "nginx to serve")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError, ValueError):
            os.kill(self.pid(), signal.SIGTERM)
        if ARGS.single:
            # What it runs under has something to say at its end.
            assert self.process.wait(ARGS.patience) == 0, f"nginx ended with {self.process.returncode}"
        time.sleep(0.2)
        if sys.exc_info()[0] is not None:
            print(self.log()[-4000:], file=sys.stderr)
        shutil.rmtree(self.folder, ignore_errors=True)

    def preload(self, text, *flags):
        """A library in front of nginx's own: its source, or a file beside this one."""
        source, library = self.folder / "preload.c", self.folder / "preload.so"
        source.write_text(text if "\n" in text else Path(__file__).with_name(text).read_text())
        subprocess.run(["cc", "-shared", "-fPIC", *flags, "-o", library, source], check=True)
        self.env["LD_PRELOAD"] = str(library)

    def notes(self, name):
        """A file that workers may write to."""
        file = self.folder / name
        file.touch()
        file.chmod(0o666)
        return file

    def pid(self):
        return int((self.folder / "nginx.pid").read_text())

    def workers(self):
        if ARGS.single:
            return [self.pid()]
        out = subprocess.run(["pgrep", "-P", str(self.pid())], capture_output=True, text=True).stdout
        return [int(pid) for pid in out.split()]

    def log(self):
        return (self.folder / "logs/error.log").read_text()

    def connect(self, version=None, timeout=None):
        context = CLIENT
        if version is not None:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.minimum_version = context.maximum_version = version
        raw = socket.create_connection(("127.0.0.1", self.port), timeout=timeout or max(20, ARGS.patience))
        return context.wrap_socket(raw)

    def get(self, path, version=None):
        try:
            with self.connect(version) as tls:
                tls.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
                return read_answer(tls)
        except OSError:
            return None

    def status(self):
        answer = self.get("/status")
        if answer is None:
            raise ConnectionError("the status page does not answer")
        return json.loads(answer)

    def settled(self):
        """Nothing of earlier clients is left: only the connection that asks. What a card still has of requests that
        were taken back from it is the card's; a silent one keeps it."""
        def calm():
            status = self.status()
            engines = status["runtime"]["engines"]
            flying = sum(engine["in_flight"] for engine in engines if engine["engine"] != "emulated")
            return status["active"] and status["in_handshake"] == 0 and flying == 0
        wait_for(calm, "everything to settle")
        self.counted()

    def counted(self):
        """The status, whose figures agree: each handshake is in one place, and one that paused is one that began."""
        status = self.status()
        for row in (status, *status["workers"]):
            assert row["handshakes"] == row["completed"] + row["aborted"] + row["in_handshake"], row
            assert row["paused"] <= row["handshakes"], row
            assert sum(row[name] for name in GROUPS) <= row["completed"], row
        for name in COUNTED + GROUPS:
            assert status[name] == sum(row[name] for row in status["workers"]), (name, status)
        return status

    def mean_batch(self, kinds=("rsa-2048-private", "ecdsa-p256-sign")):
        """Of signatures, or None if nothing here batches those that were made: curves want AVX-512 IFMA."""
        runtime = self.status()["runtime"]
        cells = [cell for cell in runtime["cells"] if cell["engine"] == "lanes" and cell["kind"] in kinds]
        made = {cell["kind"] for cell in runtime["cells"] if cell["kind"] in kinds and cell["requests"]}
        batched = made if IFMA else {kind for kind in made if kind.startswith("rsa")}
        if (made and not batched) or "lanes" not in (engine["engine"] for engine in runtime["engines"]):
            return None
        return sum(cell["batch_sum"] for cell in cells) / max(1, sum(cell["timed"] for cell in cells))

    def died(self):
        """What the log says of workers that did not end by themselves."""
        return [line for line in self.log().splitlines() if "exited on signal" in line or "[alert]" in line]


def read_answer(tls):
    answer = http.client.HTTPResponse(tls)
    answer.begin()
    body = answer.read()
    return body if answer.status == 200 else None


def wait_for(what, words, seconds=None):
    seconds = seconds or ARGS.patience
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        # A file that is just being replaced is not there yet.
        with contextlib.suppress(OSError, ValueError):
            if what():
                return
        time.sleep(0.05)
    raise AssertionError(f"waited {seconds} s in vain for {words}")


def hello(name="localhost"):
    """A ClientHello and the rest of a client that has not sent it."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = CLIENT.wrap_bio(incoming, outgoing, server_hostname=name)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read(), client, incoming, outgoing


def reset(sock):
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


class Load:
    """Clients that ask again and again until told to stop."""

    def __init__(self, nginx, clients=8, version=None):
        self.nginx, self.version, self.good, self.bad = nginx, version, 0, 0
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self.run) for _ in range(clients)]

    def run(self):
        while not self.stop.is_set():
            if self.nginx.get("/", self.version) == b"ok\n":
                self.good += 1
            else:
                self.bad += 1

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join()

    def none_failed(self, at_least):
        assert self.bad == 0, f"{self.bad} of {self.good + self.bad} requests failed"
        assert self.good >= at_least, f"only {self.good} requests"


@functools.cache
def cards():
    """The folder of the cards' files, until this program ends."""
    folder = tempfile.mkdtemp(prefix="wattlock-cards-")
    os.chmod(folder, 0o755)
    atexit.register(shutil.rmtree, folder)
    return folder


def with_card(folder_text, policy="offload"):
    """Provider settings with an emulated card."""
    path = Path(tempfile.mkstemp(dir=cards())[1])
    path.write_text(folder_text)
    # A worker that takes settings of the configuration reads it, too.
    path.chmod(0o644)
    return f"emulate = {path}\npolicy = {policy}\n"


def case_serves_every_version_and_shows_what_it_did():
    # By name: on a CPU where OpenSSL's GCM is as fast, it is not offered.
    with Nginx(provider="algorithms = gcm,rsa,x25519,kdf\n") as nginx, Load(nginx, 16) as load:
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            for _ in range(20):
                assert nginx.get("/", version) == b"ok\n"
        wait_for(lambda: load.good > 200, "200 answers", 60)
        load.stop.set()
        load.none_failed(200)
        nginx.settled()
        status = nginx.status()
        # What the client counted, those that asked for the status, and the first that waited for nginx.
        assert load.good + 40 < status["completed"] == status["handshakes"], status
        assert 0 < status["paused"] <= status["completed"], status
        kinds = {cell["kind"] for cell in status["runtime"]["cells"]}
        assert {"rsa-2048-private", "aes-256-gcm-seal"} <= kinds, kinds
        text = nginx.get("/status?format=prometheus").decode()
        assert "# TYPE wattlock_requests_total counter" in text
        samples = {line.split("{")[0] for line in text.splitlines() if f'{{worker="{status["worker"]}"' in line}
        typed = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
        assert all(line.split("{")[0] in samples for line in text.splitlines() if not line.startswith("#")), text
        helped = {line.split()[2] for line in text.splitlines() if line.startswith("# HELP") and line.endswith(".")}
        assert helped == typed >= samples, (helped ^ typed, samples - typed)
        counters = {f"wattlock_nginx_{name}_total" for name in ("handshakes", "paused", "completed", "aborted", "polls",
                                                                "flushes", "looks")}
        assert counters <= samples & typed and "wattlock_batch_count_total" in samples, text
        time.sleep(0.3)  # the meter's window began with the first question
        energy = nginx.status()["runtime"]["energy"]
        assert any(one.get("joules") or one.get("modelled") for one in energy), energy
        assert b"machine_modelled_joules_total" in nginx.get("/status?format=prometheus")
        page = nginx.get("/status?format=html").decode()
        assert f"<td>{status['worker']}<td>active, polling adaptive<td>" in page and page.count("<!doctype") == 1, page
        assert "<td>0.0" not in page, page
        # The verdict comes first, in the words of `wattlock status`; from the second look on it has rates.
        assert page.index('class="verdict"') < page.index("<h2>nginx") and "public-key operations by" in page, page
        assert 'http-equiv="refresh"' in page and "<script" not in page and len(page) < 64 << 10, page
        time.sleep(1.1)
        assert "In the last " in nginx.get("/status?format=html").decode(), page
        assert nginx.get("/status?format=xml") is None


def tcp_info(sock, form, at):
    """A member of linux/tcp.h's struct tcp_info."""
    return struct.unpack_from(form, sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 160), at)[0]


def data_segments(sock):
    """Segments with data that have come so far."""
    return tcp_info(sock, "=I", 152)  # tcpi_data_segs_in


def segments_of_a_handshake(nginx, port):
    """Segments with data that a client gets by the end of a TLS 1.3 handshake, and their bytes."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with socket.create_connection(("127.0.0.1", port), 10) as plain:
        with context.wrap_socket(plain, server_hostname="localhost") as client:
            received = lambda: tcp_info(client, "=Q", 128)  # tcpi_bytes_received
            before, since = received(), time.monotonic()
            while time.monotonic() - since < 0.3:
                time.sleep(0.01)
                if received() != before:
                    before, since = received(), time.monotonic()
            return data_segments(client), before


def case_session_tickets_travel_together():
    apart = free_port()
    nginx = Nginx()
    nginx.write(f"""server {{ listen 127.0.0.1:{apart} ssl; ssl_protocols TLSv1.3; wattlock off;
      ssl_certificate_key {nginx.folder}/key.pem; ssl_certificate {nginx.folder}/cert.pem; }}""", "", "",
                "worker_connections 2048;", ARGS.module, 1)
    with nginx:
        (ours, our_bytes), (theirs, their_bytes) = (
            segments_of_a_handshake(nginx, port) for port in (nginx.port, apart))
        # A PSS or ECDSA signature may differ by a few bytes; a ticket has hundreds.
        assert abs(our_bytes - their_bytes) < 50, (our_bytes, their_bytes)
        # The server's flight, and all tickets.
        assert ours == 2 < theirs, f"{ours} segments, {theirs} with wattlock off"
        nginx.settled()


def case_an_answer_that_is_ready_leaves_with_the_tickets():
    with Nginx() as nginx:
        for _ in range(5):
            first, client, incoming, outgoing = hello()
            with socket.create_connection(("127.0.0.1", nginx.port), max(20, ARGS.patience)) as sock:

                def until(done):
                    while True:
                        with contextlib.suppress(ssl.SSLWantReadError):
                            return done()
                        data = sock.recv(1 << 16)
                        assert data, "closed by the server"
                        incoming.write(data)

                sock.sendall(first)
                until(client.do_handshake)
                assert client.version() == "TLSv1.3"
                before = data_segments(sock)
                # The end of the handshake and the request are one segment: the server finds both in one turn.
                client.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                sock.sendall(outgoing.read())
                answer = b""
                while not answer.endswith(b"ok\n"):
                    answer += until(lambda: client.read(1 << 16))
                segments = data_segments(sock) - before
                assert segments == 1, f"tickets and answer came in {segments} segments"
        nginx.settled()


# Leaves a byte for each time that segments begin to wait, and another for each time that they may go.
NOTE_CORKS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

int setsockopt(int fd, int level, int name, const void *value, socklen_t size)
{
    int (*real)(int, int, int, const void *, socklen_t) = dlsym(RTLD_NEXT, "setsockopt");

    if (level == IPPROTO_TCP && name == TCP_CORK) {
        int file = open(NOTED, O_WRONLY|O_APPEND);

        (void) !write(file, *(const int *) value ? "1" : "0", 1);
        close(file);
    }

    return real(fd, level, name, value, size);
}
"""


def case_records_of_an_answer_travel_together():
    apart = free_port()
    nginx = Nginx()
    noted = nginx.notes("noted")
    nginx.preload(NOTE_CORKS, f'-DNOTED="{noted}"')
    nginx.write(f"""server {{ listen 127.0.0.1:{apart} ssl; wattlock off; root {nginx.folder}/html;
      ssl_certificate_key {nginx.folder}/key.pem; ssl_certificate {nginx.folder}/cert.pem; }}""", "", "",
                "worker_connections 2048;", ARGS.module, 1)

    def ask(tls, path):
        tls.sendall(f"GET /{path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        head = b""
        while b"\r\n\r\n" not in head:
            more = tls.recv(1)
            assert more, "closed by the server"
            head += more
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        body = b""
        while len(body) < length:
            more = tls.recv(1 << 16)
            assert more, "closed by the server"
            body += more
        assert body == (nginx.folder / "html" / path).read_bytes(), path
        return len(head)

    with nginx:
        (nginx.folder / "html/some").write_bytes(os.urandom(1 << 16))

        def segments(port):
            with CLIENT.wrap_socket(socket.create_connection(("127.0.0.1", port), max(20, ARGS.patience))) as tls:
                ask(tls, "index.html")
                before = data_segments(tls)
                for _ in range(5):
                    ask(tls, "some")
                return data_segments(tls) - before
        # 5 records each. More than once: what a client is too slow for, the kernel puts together by itself.
        wait_for(lambda: 2 * segments(nginx.port) < segments(apart), "half as many segments as with wattlock off")

        # Answers that are whole records to the last byte, nearly, and a little more: all of it comes, and nothing waits on.
        with nginx.connect() as tls:
            (nginx.folder / "html/some").write_bytes(os.urandom(32_000))
            head = ask(tls, "some")
            for records in (1, 2, 5):
                for more in (-1, 0, 1):
                    (nginx.folder / "html/some").write_bytes(os.urandom(records * 16384 - head + more))
                    ask(tls, "some")
            wait_for(lambda: noted.read_text().count("1") == noted.read_text().count("0") > 15, "segments to go")

        # Clients that go in the midst of one.
        worker = nginx.status()["worker"]
        (nginx.folder / "html/huge").write_bytes(bytes(8 << 20))
        for _ in range(10):
            tls = nginx.connect()
            tls.sendall(b"GET /huge HTTP/1.1\r\nHost: localhost\r\n\r\n")
            tls.recv(1000)
            reset(tls)
        nginx.settled()
        wait_for(lambda: noted.read_text().count("1") == noted.read_text().count("0") > 25, "nothing to wait")
        assert nginx.status()["worker"] == worker, "the worker was replaced"


def case_client_goes_away_with_its_request_in_flight():
    impatient = free_port()
    nginx = Nginx(provider=with_card(SLOW_CARD))
    nginx.write(f"""server {{ listen 127.0.0.1:{impatient} ssl; client_header_timeout 5ms;
      ssl_certificate_key {nginx.folder}/key.pem; ssl_certificate {nginx.folder}/cert.pem; }}""", "", "",
                "worker_connections 2048;", ARGS.module, 1)
    with nginx:
        nginx.settled()
        worker = nginx.status()["worker"]
        for turn in range(ARGS.count or 6):
            socks = []
            for at in range(30):
                # The client goes, or nginx loses patience: either way a job waits for an answer in vain.
                sock = socket.create_connection(("127.0.0.1", nginx.port if at % 2 else impatient))
                sock.sendall(hello()[0])
                socks.append(sock)
            time.sleep(random.uniform(0, 0.03))
            for sock in socks:
                reset(sock) if turn % 2 else sock.close()
        nginx.settled()
        status = nginx.status()
        assert status["worker"] == worker and status["aborted"] > 0, status
        assert nginx.get("/") == b"ok\n"


def case_upstream_is_abandoned_while_its_handshake_waits():
    inner = free_port()
    http = f"""wattlock_upstream on;
  server {{ listen 127.0.0.1:{inner} ssl; ssl_certificate_key %s/key.pem; ssl_certificate %s/cert.pem;
    location / {{ return 200 "inner\\n"; }} }}"""
    nginx = Nginx(provider=with_card(SLOW_CARD))
    nginx.write(http % (nginx.folder, nginx.folder),
                f"location /up {{ proxy_pass https://127.0.0.1:{inner}/; proxy_ssl_session_reuse off; }}", "",
                "worker_connections 2048;", ARGS.module, 1)
    with nginx:
        assert nginx.get("/up") == b"inner\n"
        worker = nginx.status()["worker"]
        for _ in range(ARGS.count or 30):
            tls = nginx.connect()
            tls.sendall(b"GET /up HTTP/1.1\r\nHost: localhost\r\n\r\n")
            time.sleep(random.uniform(0, 0.05))
            reset(tls)
        nginx.settled()
        assert nginx.status()["worker"] == worker, "the worker was replaced"
        assert nginx.get("/up") == b"inner\n"


def case_reload_under_load():
    with Nginx() as nginx:
        with Load(nginx, 8) as load:
            for _ in range(4):
                time.sleep(0.5)
                os.kill(nginx.pid(), signal.SIGHUP)
            time.sleep(0.5)
        load.none_failed(20)
        nginx.settled()

        wait_for(lambda: len(nginx.workers()) == 1, "old workers to leave")


def case_a_worker_that_is_to_end_does_not_wait_for_handshakes_that_pause():
    """worker_shutdown_timeout marks connections that are to be closed. One whose handshake waits is woken all the same;
    else it and its worker would stay until client_header_timeout, which is a minute."""
    card = SLOW_CARD.replace("20000000", "150000000")
    with Nginx(provider=with_card(card), main="worker_shutdown_timeout 20ms;") as nginx, Asking(nginx) as asking:
        old = nginx.workers()

        def by_card():
            cells = asking.status()["runtime"]["cells"]
            return nginx.get("/") and any(cell["engine"] == "emulated" for cell in cells)

        # Its known answers come first, and take as long.
        wait_for(by_card, "the card to be tested")
        with contextlib.ExitStack() as stack:
            clients = [(stack.enter_context(socket.create_connection(("127.0.0.1", nginx.port), 10)), hello())
                       for _ in range(8)]
            for sock, (first, *_) in clients:
                sock.sendall(first)
            wait_for(lambda: asking.status()["in_handshake"] == 8, "handshakes to begin")
            os.kill(nginx.pid(), signal.SIGHUP)
            for sock, (_, client, incoming, outgoing) in clients:
                # To the end of the handshake, or of the connection.
                with contextlib.suppress(ConnectionError):
                    while True:
                        with contextlib.suppress(ssl.SSLWantReadError):
                            client.do_handshake()
                            sock.sendall(outgoing.read())
                            break
                        sock.sendall(outgoing.read())
                        if not (got := sock.recv(65536)):
                            break
                        incoming.write(got)
            wait_for(lambda: not set(nginx.workers()) & set(old), "the old worker to leave")
        nginx.settled()


def case_binary_upgrade_keeps_the_module_active():
    with Nginx() as nginx:
        old = nginx.pid()
        with Load(nginx, 4) as load:
            os.kill(old, signal.SIGUSR2)
            wait_for(lambda: (nginx.folder / "nginx.pid.oldbin").exists() and nginx.pid() != old, "a new master")
            os.kill(old, signal.SIGQUIT)
            wait_for(lambda: not (nginx.folder / "nginx.pid.oldbin").exists(), "the old master to leave")
            time.sleep(0.5)
        load.none_failed(10)
        nginx.settled()
        assert nginx.status()["active"]


def case_worker_is_killed():
    with Nginx() as nginx:
        for _ in range(3):
            worker = nginx.status()["worker"]
            os.kill(worker, signal.SIGKILL)
            wait_for(lambda: (nginx.get("/status") or b"{}") != b"{}" and nginx.status()["worker"] != worker,
                     "another worker")
        nginx.settled()


def case_descriptors_run_out():
    with Nginx(main="worker_rlimit_nofile 48;", events="worker_connections 400;") as nginx:
        socks = []
        for _ in range(80):
            with contextlib.suppress(OSError):
                sock = socket.create_connection(("127.0.0.1", nginx.port), timeout=2)
                sock.sendall(hello()[0])
                socks.append(sock)
        wait_for(lambda: "Too many open files" in nginx.log(), "accept to find no descriptor left")
        for sock in socks:
            sock.close()
        nginx.settled()
        assert nginx.get("/") == b"ok\n"


def case_many_idle_connections():
    """Some before their ClientHello, some behind it, some behind their handshake."""
    count = ARGS.count or 10_000
    resource.setrlimit(resource.RLIMIT_NOFILE, (count + 500,) * 2)
    with Nginx(events=f"worker_connections {count + 500};", main=f"worker_rlimit_nofile {count + 600};") as nginx:
        socks = [socket.create_connection(("127.0.0.1", nginx.port)) for _ in range(count * 9 // 10)]
        for sock in socks[:count // 10]:
            sock.sendall(hello()[0])
        socks += [nginx.connect() for _ in range(count // 10)]
        for _ in range(20):
            assert nginx.get("/") == b"ok\n"
        for sock in socks:
            sock.close()
        nginx.settled()


def case_slow_clients():
    with Nginx() as nginx:
        first, client, incoming, outgoing = hello()
        with socket.create_connection(("127.0.0.1", nginx.port)) as sock:
            sock.settimeout(10)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in first:
                sock.sendall(bytes([byte]))
                time.sleep(0.0005)
            finish(sock, client, incoming, outgoing)
        nginx.settled()


def finish(sock, client, incoming, outgoing):
    """The rest of a handshake and one request."""
    done = False
    while not done:
        try:
            client.do_handshake()
            done = True
        except ssl.SSLWantReadError:
            pass
        out = outgoing.read()
        if out:
            sock.sendall(out)
        if not done:
            got = sock.recv(65536)
            assert got, "the server hung up"
            incoming.write(got)
    client.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    sock.sendall(outgoing.read())
    body = b""
    while b"ok\n" not in body:
        try:
            body += client.read(65536)
        except ssl.SSLWantReadError:
            got = sock.recv(65536)
            assert got, "the server hung up"
            incoming.write(got)
    assert body.startswith(b"HTTP/1.1 200"), body


# Groups by which a server prefers the hybrid.
HYBRID = "ssl_ecdh_curve X25519MLKEM768:X25519:prime256v1:secp384r1;"


def with_provider(nginx):
    """For s_client: the groups of this nginx's provider."""
    return {"OPENSSL_CONF": nginx.env["OPENSSL_CONF"]}


def case_handshakes_are_counted_by_group():
    with Nginx(http=HYBRID + "ssl_conf_command Options AllowNoDHEKEX;") as nginx:
        def adds(group, *more):
            """What a client's handshake adds, but for the one that asks for the status."""
            before = nginx.status()
            said = s_client(nginx.port, *more, env=with_provider(nginx))
            after = nginx.counted()
            added = {name: after[name] - before[name] for name in GROUPS}
            added["group_x25519"] -= 1
            assert added == {name: int(name == group) for name in GROUPS}, (more, added, said)
            return said

        session = nginx.folder / "session"
        last = ["-sess_out", session]
        for group, more in {"group_x25519mlkem768": ["-groups", "X25519MLKEM768"],
                            "group_x25519": ["-groups", "X25519:X25519MLKEM768"],
                            "group_p256": ["-groups", "P-256"], "group_other": ["-groups", "P-384"]}.items():
            adds(group, *more)
        # The server has asked for another share than the one that the client guessed.
        adds("group_x25519mlkem768", "-groups", "X448:X25519MLKEM768")
        adds("group_x25519", "-tls1_2", "-groups", "X25519MLKEM768:X25519", *last)
        assert "Reused" in adds("group_none", "-tls1_2", "-sess_in", session)
        adds("group_none", "-tls1_2", "-cipher", "AES128-GCM-SHA256")
        asked = {"said": "GET / HTTP/1.0\r\n\r\n", "more": ["-ign_eof", "-groups", "X25519MLKEM768"]}
        s_client(nginx.port, *asked["more"], *last, said=asked["said"], env=with_provider(nginx))
        assert "Reused" in adds("group_x25519mlkem768", "-groups", "X25519MLKEM768", "-sess_in", session)
        s_client(nginx.port, *asked["more"], *last, said=asked["said"], env=with_provider(nginx))
        # No share that the server takes, and no other one asked for.
        assert "Reused" in adds("group_none", "-groups", "P-521", "-sess_in", session, "-allow_no_dhe_kex")


@contextlib.contextmanager
def relay(port, forward):
    """A port whose connections go to another one; `forward` brings what the client sends."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(client):
        with client, socket.create_connection(("127.0.0.1", port)) as server, contextlib.suppress(OSError):
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            back = threading.Thread(target=copy, args=(server, client))
            back.start()
            forward(client, server)
            back.join()

    def copy(source, sink):
        with contextlib.suppress(OSError):
            while got := source.recv(65536):
                sink.sendall(got)
            sink.shutdown(socket.SHUT_WR)

    def accept():
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.close()


def case_hellos_of_the_hybrid_come_in_pieces_or_never():
    """Their share takes 1,216 bytes: more than one packet."""
    def in_pieces(size):
        def forward(client, server):
            first = client.recv(65536)
            assert len(first) > 1300, len(first)
            for at in range(0, len(first), size):
                server.sendall(first[at:at + size])
                time.sleep(0.0005)
            while got := client.recv(65536):
                server.sendall(got)
            server.shutdown(socket.SHUT_WR)
        return forward

    stopped = []

    def cut(client, server):
        first = client.recv(65536)
        server.sendall(first[:len(first) - len(stopped) * 20 - 1])
        stopped.append(server)
        # Until nginx gives up.
        server.recv(1)

    hybrid = ["-groups", "X25519MLKEM768"]
    with Nginx(http=HYBRID + "client_header_timeout 2s;") as nginx:
        env = with_provider(nginx)
        for size in (1, 5, 100, 1200, 1400):
            before = nginx.status()["group_x25519mlkem768"]
            with relay(nginx.port, in_pieces(size)) as port:
                said = s_client(port, *hybrid, env=env)
            assert "Verify return code" in said, said
            wait_for(lambda: nginx.status()["group_x25519mlkem768"] == before + 1, f"a hello in pieces of {size}")
        nginx.settled()
        before = nginx.status()
        with relay(nginx.port, cut) as port, Load(nginx, 4) as load:
            clients = [threading.Thread(target=s_client, args=(port, *hybrid), kwargs={"env": env}) for _ in range(12)]
            for client in clients:
                client.start()
            wait_for(lambda: len(stopped) == 12, "12 clients that stop")
            wait_for(lambda: nginx.status()["aborted"] == before["aborted"] + 12, "nginx to give them up")
            for client in clients:
                client.join()
            load.stop.set()
            load.none_failed(10)
        nginx.settled()
        assert nginx.status()["group_x25519mlkem768"] == before["group_x25519mlkem768"]
        assert not nginx.died(), nginx.died()


def case_events_come_while_a_job_is_paused():
    with Nginx(provider=with_card(SLOW_CARD)) as nginx, Load(nginx, 2) as load:
        for _ in range(ARGS.count or 20):
            first, client, incoming, outgoing = hello()
            with socket.create_connection(("127.0.0.1", nginx.port)) as sock:
                sock.settimeout(10)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.sendall(first)
                time.sleep(0.004)
                # A change-cipher-spec record, which TLS 1.3 allows here and ignores: a read event for nothing.
                sock.sendall(b"\x14\x03\x03\x00\x01\x01")
                time.sleep(0.004)
                finish(sock, client, incoming, outgoing)
        load.stop.set()
        load.none_failed(2)
        nginx.settled()
        status = nginx.status()
        assert (ARGS.count or 20) <= status["paused"] <= status["completed"], status


def case_garbage():
    rng = random.Random(7)
    with Nginx() as nginx:
        pattern = hello()[0]
        for turn in range(ARGS.count or 600):
            data = bytearray(pattern)
            if turn % 10 == 0:
                data = bytearray(rng.randbytes(rng.randrange(1, 2000)))
            for _ in range(rng.randrange(1, 8)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            if turn % 3 == 0:
                data = data[:rng.randrange(1, len(data))]
            with socket.create_connection(("127.0.0.1", nginx.port)) as sock:
                sock.settimeout(0.05)
                with contextlib.suppress(OSError):
                    sock.sendall(data)
                    sock.shutdown(socket.SHUT_WR)
                    sock.recv(4096)
        nginx.settled()
        assert nginx.get("/") == b"ok\n"
        assert "signal" not in nginx.log().replace("signal process started", ""), nginx.log()[-2000:]


def case_web_socket_reads_and_writes_at_once():
    backend = socket.create_server(("127.0.0.1", 0))

    def serve():
        conn, _ = backend.accept()
        head = b""
        while b"\r\n\r\n" not in head:
            head += conn.recv(4096)
        conn.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
        while data := conn.recv(65536):
            conn.sendall(data)
        conn.close()

    threading.Thread(target=serve, daemon=True).start()
    server = f"""location /ws {{ proxy_pass http://127.0.0.1:{backend.getsockname()[1]}; proxy_http_version 1.1;
      proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection "upgrade"; }}"""
    with Nginx(server=server) as nginx:
        tls = nginx.connect()
        tls.sendall(b"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
        head = b""
        while b"\r\n\r\n" not in head:
            head += tls.recv(1)
        assert b" 101 " in head
        sent = random.Random(1).randbytes(2_000_000)
        tls.settimeout(20)
        writer = threading.Thread(target=lambda: tls.sendall(sent))
        writer.start()
        with Load(nginx, 4):
            echoed = bytearray()
            while len(echoed) < len(sent):
                got = tls.recv(65536)
                assert got, "the tunnel closed"
                echoed += got
            writer.join()
        assert bytes(echoed) == sent
        tls.close()
        nginx.settled()


def broken(fault, version=None, seconds=3.0, card=CARD):
    with Nginx(provider=with_card(card + fault + "\n") + "give-up-ms = 50\n") as nginx:
        with Load(nginx, 8, version) as load:
            time.sleep(seconds)
        load.none_failed(10)
        nginx.settled()
        engines = {engine["engine"]: engine for engine in nginx.status()["runtime"]["engines"]}
        assert engines["emulated"]["fallbacks"], engines


def case_card_reports_errors():
    broken("fault error every 5")


def case_card_hangs():
    broken("fault silence every 7")


def case_card_signs_wrongly():
    broken("fault wrong-result every 3", ssl.TLSVersion.TLSv1_2, card=SIGNING_CARD)
    broken("fault wrong-result every 3", ssl.TLSVersion.TLSv1_3, card=SIGNING_CARD)


def case_card_disappears_and_comes_back():
    broken("fault lost after 700000000 until 1500000000", seconds=4.0)


def case_every_rule_with_a_card_that_fails_in_every_way():
    """It errs, hangs and vanishes, and of signatures, which are all checked, it lies. No request fails under any rule."""
    hides = "fault error every 5\nfault silence every 37\nfault lost 300000000 requests 100 100\n"
    signing = SIGNING_CARD + "fault wrong-result every 7\n" + hides
    sealing = SEALING_CARD.replace("20000000", "200000") + hides
    settings = "give-up-ms = 50\nthresholds = eeca.threshold_bytes=0,qweb.software_bytes=0\n"
    for rule in ("offload", "eeca", "aca-sds", "qweb", "lecpaes", "eep", "adaptive", "software", "instruction"):
        for card, algorithms in ((signing, "rsa"), (sealing, "rsa,gcm")):
            provider = with_card(card, rule) + settings + f"algorithms = {algorithms}\n"
            with Nginx(provider=provider) as nginx:
                big = (nginx.folder / "html/big").read_bytes()
                with Load(nginx, 4) as load:
                    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
                        for _ in range(ARGS.count or 8):
                            assert nginx.get("/big", version) == big, (rule, algorithms)
                load.none_failed(4)
                nginx.settled()
                # Its fallbacks say that it was asked, under the rules that offload whatever there is.
                engines = {engine["engine"]: engine for engine in nginx.status()["runtime"]["engines"]}
                asked = bool(engines["emulated"]["fallbacks"])
                assert asked or rule not in ("offload", "eeca", "qweb", "lecpaes"), (rule, algorithms, engines)
                assert not nginx.died(), nginx.died()


def case_keep_alive_connections_are_used_again():
    with Nginx() as nginx:
        with nginx.connect() as tls:
            connection = http.client.HTTPSConnection("localhost")
            connection.sock = tls
            for turn in range(200):
                connection.request("GET", "/big" if turn % 10 == 0 else "/")
                body = connection.getresponse().read()
                assert len(body) == (300_000 if turn % 10 == 0 else 3)
        nginx.settled()


def case_certificate_with_a_variable():
    with Nginx(http="map $ssl_server_name $name { default cert; }") as plain:
        folder = plain.folder
        # With a variable the worker reads it, not the master.
        (folder / "key.pem").chmod(0o644)
        conf = plain.conf.read_text().replace(f"{folder}/cert.pem", f"{folder}/$name.pem")
        plain.conf.write_text(conf)
        os.kill(plain.pid(), signal.SIGHUP)
        time.sleep(0.5)
        with Load(plain, 8) as load:
            time.sleep(1.5)
        load.none_failed(10)
        plain.settled()


def hold(nginx):
    """Gives the key of an nginx that is not yet started to a provider that does not let go of it, as a PKCS#11 token's
    and a TPM's do not: `held.c` of the provider's tests, which reads files of its own."""
    folder = nginx.folder
    source = Path(__file__).resolve().parents[2] / "crates/wattlock-provider/tests/held/held.c"
    subprocess.run(["cc", "-O1", "-fPIC", "-shared", "-o", folder / "held.so", source, "-lcrypto"], check=True)
    config = folder / "openssl.cnf"
    config.write_text(config.read_text().replace("[providers]\n", "[providers]\nheld = held_provider\n")
                      + f"[held_provider]\nmodule = {folder}/held.so\nactivate = 1\n")
    plain = subprocess.run(["openssl", "pkcs8", "-topk8", "-nocrypt", "-in", folder / "key.pem", "-outform", "DER"],
                           check=True, capture_output=True).stdout
    string = b"held" + plain
    text = base64.b64encode(b"\x04\x82" + struct.pack(">H", len(string)) + string).decode()
    lines = "\n".join(text[at:at + 64] for at in range(0, len(text), 64))
    (folder / "key.held").write_text(f"-----BEGIN HELD PRIVATE KEY-----\n{lines}\n-----END HELD PRIVATE KEY-----\n")
    (folder / "key.pem").unlink()
    nginx.conf.write_text(nginx.conf.read_text().replace("key.pem", "key.held"))


def case_key_in_another_provider():
    for certificate in ("rsa:2048", "ec -pkeyopt ec_paramgen_curve:P-256"):
        nginx = Nginx(certificate=certificate)
        hold(nginx)
        with nginx:
            for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
                with Load(nginx, 8, version) as load:
                    wait_for(lambda: load.good > 40, "40 answers", 60)
                load.none_failed(40)
            if certificate.startswith("rsa"):
                # The premaster secret is decrypted by the key.
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                context.maximum_version = ssl.TLSVersion.TLSv1_2
                context.set_ciphers("AES128-GCM-SHA256")
                with context.wrap_socket(socket.create_connection(("127.0.0.1", nginx.port), 20)) as tls:
                    assert tls.cipher()[0] == "AES128-GCM-SHA256"
                    tls.sendall(b"GET / HTTP/1.0\r\n\r\n")
                    assert read_answer(tls) == b"ok\n"
            nginx.settled()
            status = nginx.status()
            # The key agreement is ours, and pauses; the signature is not.
            assert status["active"] and status["paused"] > 0, status
            kinds = {cell["kind"] for cell in status["runtime"]["cells"]}
            assert "x25519-derive" in kinds and not kinds & {"rsa-2048-private", "ecdsa-p256-sign"}, kinds


class Asking:
    """A connection on which the status is asked for, so that asking makes no handshake."""

    def __init__(self, nginx):
        self.connection = http.client.HTTPSConnection("localhost")
        self.connection.sock = nginx.connect()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.connection.close()

    def status(self):
        self.connection.request("GET", "/status")
        return json.loads(self.connection.getresponse().read())

    def paused(self):
        return self.status()["paused"]


def hold_back_the_second_flight(port, enough):
    """A way to a server on which a client's records after its early data wait until so many bytes came back."""
    def records(sock):
        with sock.makefile("rb") as stream:
            while len(head := stream.read(5)) == 5:
                yield head + stream.read(struct.unpack(">H", head[3:])[0])

    def serve(client):
        server = socket.create_connection(("127.0.0.1", port), 60)
        answered = threading.Event()

        def back():
            count = 0
            with contextlib.suppress(OSError):
                while data := server.recv(1 << 16):
                    client.sendall(data)
                    count += len(data)
                    if count >= enough:
                        answered.set()
                client.shutdown(socket.SHUT_WR)

        threading.Thread(target=back, daemon=True).start()
        with contextlib.suppress(OSError):
            early = False
            for record in records(client):
                if early:
                    answered.wait(20)
                server.sendall(record)
                early = early or record[0] == 23  # application data: RFC 8446, section 5.1
            server.shutdown(socket.SHUT_WR)

    return listen(serve)


def case_early_data_is_answered_while_handshakes_pause():
    long = "x" * 3000
    server = f'ssl_early_data on; location = /early {{ return 200 "early ($ssl_early_data) {long}\\n"; }}'
    request = "GET /early HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with Nginx(provider=with_card(SLOW_CARD), server=server) as nginx, Asking(nginx) as asking:
        # More than the rest of a handshake: the answer is on its way before the client has said its last.
        held_back = hold_back_the_second_flight(nginx.port, len(long))
        ticket, early = nginx.folder / "ticket", nginx.folder / "early"
        early.write_text(request)

        def client(port, said, *more):
            done = subprocess.run(["timeout", "60", "openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-tls1_3",
                                   "-ign_eof", *more], input=said, capture_output=True, text=True)
            assert long in done.stdout, done.stdout + done.stderr
            return done.stdout

        for _ in range(ARGS.count or 6):
            told = client(nginx.port, request, "-sess_out", ticket)
            assert "early () x" in told, told
            before = asking.paused()
            told = client(held_back, "", "-sess_in", ticket, "-early_data", early)
            # The variable is 1 while the handshake is not over: what was asked may be a replay.
            assert "Early data was accepted" in told and "early (1) x" in told, told
            assert asking.paused() > before, "no pause"
        nginx.settled()


def case_http2_is_negotiated_while_handshakes_pause():
    port = free_port()
    nginx = Nginx(provider=with_card(SLOW_CARD))
    nginx.write(f"""server {{ listen 127.0.0.1:{port} ssl http2; root {nginx.folder}/html;
      ssl_protocols TLSv1.2 TLSv1.3;
      ssl_certificate_key {nginx.folder}/key.pem; ssl_certificate {nginx.folder}/cert.pem; }}""", "", "",
                "worker_connections 2048;", ARGS.module, 1)
    with nginx, Asking(nginx) as asking:
        form = "%{http_version} %{response_code} %{size_download} %{num_connects}\\n"
        # Three at a time on one connection.
        urls = [word for name in ("", "big", "index.html")
                for word in ("-o", "/dev/null", f"https://127.0.0.1:{port}/{name}")]
        for version in (["--tlsv1.3"], ["--tls-max", "1.2"]):
            command = ["curl", "-sk", "--http2", "-m", "60", "-Z", "-w", form, *version, *urls]
            for _ in range(ARGS.count or 5):
                before = asking.paused()
                clients = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
                           for _ in range(4)]
                for client in clients:
                    told = sorted(line.split() for line in client.communicate()[0].splitlines())
                    assert [line[:3] for line in told] == [["2", "200", "3"]] * 2 + [["2", "200", "300000"]], told
                    assert client.returncode == 0 and sum(int(line[3]) for line in told) == 1, told
                # Each of the four handshakes waited for the card at least once.
                assert asking.paused() >= before + len(clients)
        nginx.settled()


def case_versions_that_do_not_match_leave_it_inactive():
    with Nginx(module=ARGS.other_module) as nginx:
        status = nginx.status()
        assert not status["active"] and "another version" in status["why"], status
        assert "inactive" in nginx.log()
        assert nginx.get("/", ssl.TLSVersion.TLSv1_2) == b"ok\n"


def case_without_a_provider_it_says_so():
    nginx = Nginx()
    (nginx.folder / "openssl.cnf").write_text("")
    with nginx:
        status = nginx.status()
        assert not status["active"] and "not loaded" in status["why"], status


def case_it_is_active_without_proc():
    """As in a chroot: nothing is where /proc should be."""
    hidden = ["unshare", "-m", "sh", "-c", "mount -t tmpfs none /proc && exec \"$@\"", "sh"]
    if not shutil.which("unshare") or subprocess.run([*hidden, "true"], capture_output=True).returncode != 0:
        raise NotRun("whoever runs this may not hide /proc")
    with Nginx(before=hidden) as nginx:
        assert nginx.status()["active"], nginx.status()
        assert nginx.get("/", ssl.TLSVersion.TLSv1_2) == b"ok\n"
        nginx.settled()


def case_heuristic_polling():
    """The published rule: 48 in flight, all wait, or 5 us; the loop does not sleep, and batches go early."""
    with Nginx(http="wattlock_poll heuristic;") as nginx:
        assert "active, heuristic polling" in nginx.log()
        assert nginx.status()["workers"][0]["polling"] == "heuristic" and not nginx.status()["workers"][0]["settings_refused"]
        with Load(nginx, 12) as load:
            wait_for(lambda: load.good > 40, "40 answers", 60)
        load.none_failed(20)
        status = nginx.settled() or nginx.status()
        assert status["flushes"] > 0 and status["paused"] > 0, status


def case_heuristic_polling_says_when_a_cards_answer_is_looked_for():
    """A request goes to the card when it comes. Beside a client that is not idle and does not wait, its answer is there
    after 150 ms and is taken by the look after 500, which is the first."""
    card = SLOW_CARD.replace("20000000", "150000000").replace(",ecdsa-p256-sign,p256-derive,p256-generate", "")
    limits = "thresholds = qweb.timer_ns=500000000,qweb.poll_asymmetric=1000,qweb.poll_symmetric=1000\n"
    settings = with_card(card.replace(",x25519-derive,x25519-generate", ""), "qweb") + limits + "algorithms = rsa\n"
    with Nginx(http="wattlock_poll heuristic;", provider=settings) as nginx, Asking(nginx) as asking:
        row = nginx.status()["workers"][0]
        assert row["polling"] == "heuristic" and not row["settings_refused"], row

        def on_card(status):
            return next((cell for cell in status["runtime"]["cells"] if cell["engine"] == "emulated"), None)

        # Until it has given its known answers the CPU signs.
        wait_for(lambda: nginx.get("/") == b"ok\n" and on_card(asking.status()), "the card to sign")
        wait_for(lambda: asking.status()["in_handshake"] == 0, "all to end")
        with socket.create_connection(("127.0.0.1", nginx.port)) as half:
            half.sendall(hello()[0][:100])
            wait_for(lambda: asking.status()["in_handshake"] == 1, "half a client")
            for _ in range(ARGS.count or 3):
                before = asking.status()
                with socket.create_connection(("127.0.0.1", nginx.port), 20) as sock:
                    first, *rest = hello()
                    sock.sendall(first)
                    finish(sock, *rest)
                wait_for(lambda: asking.status()["in_handshake"] == 1, "the handshake to end")
                after = asking.status()
                assert on_card(after)["requests"] == on_card(before)["requests"] + 1, (before, after)
                assert on_card(after)["held_ns"] == 0, "it was held"
                assert after["looks"] == before["looks"] + 1, (before["looks"], after["looks"])
                assert after["polls"] > before["polls"] + 1, "the loop asked all the time"
        nginx.settled()


def case_the_loop_sleeps_until_a_cards_answer_is_due():
    """Hybrid looking, adaptive's: it looks in each turn only while an answer is due within two wake-ups."""
    settings = with_card(SIGNING_CARD.replace("200000", "150000000"), "qweb") + "algorithms = rsa\n"
    with Nginx(provider=settings) as nginx, Asking(nginx) as asking:
        def signed():
            """How many the card signed, and how often the loop asked and looked meanwhile."""
            before = asking.status()
            assert nginx.get("/") == b"ok\n"
            after = asking.status()
            return on_card(after, "rsa") - on_card(before, "rsa"), after["polls"] - before["polls"], after["looks"] - before["looks"]

        first = []

        def by_card():
            first[:] = signed()
            return first[0] == 1

        wait_for(by_card, "the card to sign")
        assert first[2] > 1000, ("nothing was known", first)
        for _ in range(10):
            signed()
        # An answer that comes late is looked for at once and, when it is a millisecond late, ever more rarely.
        some = sorted(signed()[1] for _ in range(5))
        assert 2 <= some[2] < 1000, some
        nginx.settled()


def case_derivations_of_a_handshake_are_a_cards_work():
    """The PRF of TLS 1.2 and HKDF of 1.3 pause like signatures where the policy gives them to a device."""
    kinds = ("tls12-prf-sha-256", "tls12-prf-sha-384", "hkdf-expand-sha-256", "hkdf-expand-sha-384")
    card = SLOW_CARD.replace("20000000", "200000")
    card += f"table {','.join(kinds)} 0:50000\n"
    for rule in ("adaptive", "heuristic"):
        settings = with_card(card, "qweb") + "algorithms = rsa,kdf\n"
        with Nginx(http=f"wattlock_poll {rule};", provider=settings) as nginx, Asking(nginx) as asking:
            def derived():
                """By the card, and by others."""
                cells = [cell for cell in asking.status()["runtime"]["cells"] if cell["kind"] in kinds]
                card = sum(cell["requests"] for cell in cells if cell["engine"] == "emulated")
                return card, sum(cell["requests"] for cell in cells) - card

            # A TLS 1.2 handshake derives a master secret, a block of keys and two verified messages.
            for version, least in ((ssl.TLSVersion.TLSv1_2, 4), (ssl.TLSVersion.TLSv1_3, 10)):
                def only_by_card(times=5):
                    before = derived()
                    for _ in range(times):
                        assert nginx.get("/", version) == b"ok\n"
                    after = derived()
                    return after[1] == before[1] and after[0] - before[0] >= times * least

                wait_for(only_by_card, f"the card to derive for {version}")
                assert only_by_card(), derived()
            with Load(nginx, 16) as load:
                wait_for(lambda: load.good > 100, "100 answers", 60)
            load.none_failed(100)
            nginx.settled()


def case_records_of_a_handshake_are_a_cards_work():
    """Of ciphers, what is known to be a TLS record; what follows a handshake waits for it. No random generator's."""
    gcm = [f"aes-{bits}-gcm-{way}" for bits in (128, 256) for way in ("seal", "open")]
    card = SLOW_CARD.replace("20000000", "200000") + f"table {','.join(gcm)},aes-256-ctr 0:50000\n"
    settings = with_card(card, "offload") + "algorithms = rsa,gcm,ctr\n"
    with Nginx(provider=settings) as nginx, Asking(nginx) as asking:
        def done():
            """By the card, by way, and whether it did anything else."""
            cells = [cell for cell in asking.status()["runtime"]["cells"] if cell["engine"] == "emulated"]
            ways = [sum(cell["requests"] for cell in cells if cell["kind"].endswith(way)) for way in ("seal", "open")]
            assert all(cell["kind"] in gcm or cell["kind"] == "rsa-2048-private" for cell in cells), cells
            return ways

        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            def by_card(times=5):
                before = done()
                for _ in range(times):
                    assert nginx.get("/big", version) is not None
                sealed, opened = (after - before for after, before in zip(done(), before))
                # 300,000 bytes are eighteen records: they are sealed when the handshake is over.
                return 2 * times <= opened <= 4 * times and 19 * times <= sealed <= 27 * times

            wait_for(by_card, f"the card to seal and open for {version}")
            assert by_card(), done()
        # One that is forged ends its connection, as without a card.
        aborted = asking.status()["aborted"]
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", nginx.port), 20) as sock:
                sock.sendall(hello()[0])
                sock.recv(1)
                sock.sendall(b"\x17\x03\x03\x00\x45" + random.randbytes(0x45))
                with contextlib.suppress(ConnectionResetError):
                    while sock.recv(65536):
                        pass
        wait_for(lambda: asking.status()["aborted"] == aborted + 5, "forged records to end five handshakes")
        with Load(nginx, 16) as load:
            wait_for(lambda: load.good > 100, "100 answers", 60)
        load.none_failed(100)
        nginx.settled()
        assert not nginx.died(), nginx.died()


def case_records_that_libssl_makes_together_are_one_operation_of_a_card():
    """Each record is one request, its MAC and padding included, and the response is right."""
    card = SLOW_CARD.replace("20000000", "200000") + "table aes-128-cbc-encrypt 0:50000\n"
    server = "ssl_ciphers AES128-SHA:@SECLEVEL=0; ssl_conf_command Options -EncryptThenMac; ssl_buffer_size 128k;"
    client = older("AES128-SHA:@SECLEVEL=0")
    # The CPU, which takes MACs and whole blocks in one pass, has two requests of each record, though there is a card.
    for policy, engine, of_each in (("offload", "emulated", 1), ("instruction", "instruction", 2)):
        settings = with_card(card, policy) + "algorithms = rsa,cbc-hmac\n"
        # What asks for the status and waits for the start does so over TLS 1.3.
        with Nginx(server=server, provider=settings) as nginx, Asking(nginx) as asking:
            records_by(nginx, asking, client, engine, of_each)


def records_by(nginx, asking, client, engine, of_each):
    big = (nginx.folder / "html/big").read_bytes()

    def done():
        cells = asking.status()["runtime"]["cells"]
        cells = [one for one in cells if (one["engine"], one["kind"]) == (engine, "aes-128-cbc-encrypt")]
        return [sum(cell[figure] for cell in cells) for figure in ("requests", "bytes")]

    def whole_records():
        before = done()
        with client.wrap_socket(socket.create_connection(("127.0.0.1", nginx.port), 20)) as tls:
            tls.sendall(b"GET /big HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert read_answer(tls) == big
        requests, size = (after - before for after, before in zip(done(), before))
        # Two writes of 128 KiB are made so, of eight records each.
        whole = requests % (4 * of_each) == 0 and size > 0.8 * len(big)
        return whole and 12_000 < size / (requests / of_each) < 17_000

    wait_for(whole_records, f"{engine} to encrypt whole records")
    assert whole_records()
    nginx.settled()


def on_card(status, kind):
    cells = [cell for cell in status["runtime"]["cells"] if cell["engine"] == "emulated" and kind in cell["kind"]]
    return sum(cell["requests"] for cell in cells)


def on_its_way(status):
    """What a card has."""
    return sum(one["in_flight"] for one in status["runtime"]["engines"] if one["engine"] == "emulated")


def older(ciphers):
    """A client of TLS 1.2 with these ciphers."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    client.set_ciphers(ciphers)
    return client


def until_the_card_writes(nginx, asking, fetch, kind):
    """The CPU seals until the card has given its known answers."""
    def writes():
        before = on_card(asking.status(), kind)
        fetch()
        return on_card(asking.status(), kind) > before
    wait_for(writes, f"the card to do {kind}")


def case_answers_wait_for_a_card_and_the_loop_goes_on():
    """SSL_write pauses: the records of many connections are on the card at once, and each answer comes whole."""
    with Nginx(provider=with_card(SEALING_CARD) + "algorithms = rsa,gcm\n") as nginx, Asking(nginx) as asking:
        big = (nginx.folder / "html/big").read_bytes()
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            until_the_card_writes(nginx, asking, lambda: nginx.get("/big", version), "gcm-seal")
            before, right, most = asking.status(), [], 0
            fetch = lambda: right.append(nginx.get("/big", version) == big)
            clients = [threading.Thread(target=fetch) for _ in range(16)]
            for client in clients:
                client.start()
            while any(client.is_alive() for client in clients):
                most = max(most, on_its_way(asking.status()))
                time.sleep(0.01)  # a connection is good for a thousand requests
            after = asking.status()
            assert right == [True] * 16, right
            # An answer of 300,000 bytes is written as nineteen records.
            assert after["writes_paused"] - before["writes_paused"] >= 16 * 19, (before, after)
            # If a write had the loop wait, there would be one, beside that of the status.
            assert most >= 4, most
        nginx.settled()
        assert not nginx.died(), nginx.died()


def case_records_of_one_call_are_submitted_together_and_pause_it_once():
    """EECA's reconstruction of requests on 64 kept connections: eight records a call."""
    server = "ssl_ciphers AES128-SHA:@SECLEVEL=0; ssl_conf_command Options -EncryptThenMac; ssl_buffer_size 128k;"
    client, clients = older("AES128-SHA:@SECLEVEL=0"), 64
    # A card that does MACs, too: they are the CPU's, as published.
    card = SEALING_CARD + "table hmac-sha-1 0:20000000\n"
    # It has room for all: what finds it full does not pause, but is the CPU's.
    card = card.replace("window 256 requests 4194304 bytes", "window 1024 requests 33554432 bytes")
    settings = with_card(card) + "algorithms = rsa,cbc-hmac\n"
    with Nginx(server=server, provider=settings) as nginx, Asking(nginx) as asking:
        text = os.urandom(1 << 20)
        (nginx.folder / "html/mebibyte").write_bytes(text)

        def kept():
            connection = http.client.HTTPSConnection("localhost")
            connection.sock = client.wrap_socket(socket.create_connection(("127.0.0.1", nginx.port), 60))
            return connection

        def answers(connection, times=1):
            for _ in range(times):
                connection.request("GET", "/mebibyte")
                if connection.getresponse().read() != text:
                    return False
            return True

        connections = [kept() for _ in range(clients)]
        until_the_card_writes(nginx, asking, lambda: answers(connections[0]), "cbc")
        before, right, most = asking.status(), [], 0
        threads = [threading.Thread(target=lambda one: right.append(answers(one, 2)), args=[one]) for one in connections]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            most = max(most, on_its_way(asking.status()))
            time.sleep(0.01)  # a connection is good for a thousand requests
        after = asking.status()
        assert right == [True] * clients, right
        records = on_card(after, "cbc") - on_card(before, "cbc")
        calls = after["writes_paused"] - before["writes_paused"]
        # A mebibyte behind a short head is seven or eight such calls, of 4 or 8 records.
        assert 2 * clients * 6 <= calls <= 2 * clients * 9, calls
        assert records > 4 * calls, (records, calls)
        assert most > 16, most
        assert on_card(after, "hmac") == 0
        for connection in connections:
            connection.close()
        nginx.settled()
        assert not nginx.died(), nginx.died()


def case_writes_that_pause_meet_what_connections_meet():
    """HTTP/2, request bodies that are passed on as they come, slow readers, resets, reloads, TLS to upstreams, and a card
    that fails in every way: no answer is lost, none is wrong, nothing is left. A card that is quick or a loop that looks at
    each call finds the answer to a write before nginx knows that it waits."""
    for fault in ("", "fault error every 5", "fault silence every 17", "fault lost after 700000000 until 1500000000"):
        card = SEALING_CARD.replace("20000000", "2000000") + fault + "\n"
        provider = with_card(card) + "algorithms = rsa,gcm\ngive-up-ms = 50\n"
        writes_that_pause(provider, fault, "")
    for time in ("2000000", "2000"):
        provider = with_card(SEALING_CARD.replace("20000000", time)) + "algorithms = rsa,gcm\n"
        writes_that_pause(provider, "", "wattlock_poll heuristic;")


def writes_that_pause(provider, fault, poll):
    port = free_port()
    nginx = Nginx(provider=provider)
    folder = nginx.folder
    tls = f"ssl_certificate {folder}/cert.pem; ssl_certificate_key {folder}/key.pem; root {folder}/html;"
    nginx.write(f"""wattlock_upstream on; {poll}
      server {{ listen 127.0.0.1:{port} ssl http2; {tls} client_max_body_size 0;
        location /put/ {{ dav_methods PUT; create_full_put_path on; }}
      }}""", f"""client_max_body_size 0;
      location /through/ {{ proxy_pass https://127.0.0.1:{port}/; proxy_request_buffering off; proxy_http_version 1.1;
                            proxy_buffering off; }}
      location /kept/ {{ proxy_pass https://127.0.0.1:{port}/; }}
      """, "", "worker_connections 2048;", ARGS.module, 1)
    big = (folder / "html/big").read_bytes()
    (folder / "html/put").mkdir()
    (folder / "html/put").chmod(0o777)
    wrong = []

    def check(what, good):
        if not good:
            wrong.append(what)

    def two(turn):
        """Three streams of one connection, and one that sends."""
        urls = [word for name in ("big", "", "big") for word in ("-o", "-", f"https://127.0.0.1:{port}/{name}")]
        done = subprocess.run(["curl", "-sk", "--http2", "-m", "60", "-Z", *urls], capture_output=True)
        check(("http2", done.returncode, len(done.stdout)), done.returncode == 0 and len(done.stdout) == 2 * len(big) + 3)
        done = subprocess.run(["curl", "-sk", "-m", "60", "-T", folder / "html/big",
                               f"https://127.0.0.1:{nginx.port}/through/put/{turn}"], capture_output=True)
        check(("sent", done.returncode), done.returncode == 0 and (folder / f"html/put/{turn}").read_bytes() == big)

    def through(turn):
        for path in ("/through/big", "/kept/big"):
            check(path, nginx.get(path) == big)

    def slowly(turn):
        with nginx.connect() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32768)
            sock.sendall(b"GET /big HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            time.sleep(0.1)
            check("slowly", read_answer(sock) == big)

    def gone(turn):
        sock = nginx.connect()
        sock.sendall(b"GET /big HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2)
        sock.recv(1 + 20_000 * (turn % 3))
        (reset if turn % 3 else socket.socket.close)(sock)

    with nginx, Asking(nginx) as asking:
        if not fault:
            until_the_card_writes(nginx, asking, lambda: nginx.get("/big"), "gcm-seal")
        with Load(nginx, 4) as load:
            def work(which):
                for turn in range(ARGS.count or 4):
                    which(turn)
            threads = [threading.Thread(target=work, args=[which]) for which in (two, through, slowly, gone, gone)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            paused = asking.status()["writes_paused"]
            os.kill(nginx.pid(), signal.SIGHUP)
            work(through)
        load.none_failed(10)
        assert not wrong, (fault, wrong)
        assert fault or paused > 50, paused
        nginx.settled()
        assert not nginx.died(), nginx.died()


def case_an_upgrade_is_answered_while_writes_pause():
    """nginx never comes again for the head of an upgrade's answer: what it writes next on the connection is what is behind."""
    def serve(sock):
        head = b""
        while b"\r\n\r\n" not in head:
            head += sock.recv(4096)
        # With the head, or behind it.
        sock.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n" + b"first " * 100)
        while data := sock.recv(65536):
            sock.sendall(data)

    server = f"""location /ws {{ proxy_pass http://127.0.0.1:{listen(serve)}; proxy_http_version 1.1;
      proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection "upgrade"; }}"""
    provider = with_card(SEALING_CARD) + "algorithms = rsa,gcm\n"
    with Nginx(server=server, provider=provider) as nginx, Asking(nginx) as asking:
        until_the_card_writes(nginx, asking, lambda: nginx.get("/big"), "gcm-seal")

        def talk(turn):
            with nginx.connect() as tls:
                tls.sendall(b"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
                said, heard = random.randbytes(100_000), b""
                tls.sendall(said)
                while b"\r\n\r\n" not in heard or len(heard.partition(b"\r\n\r\n")[2]) < 600 + len(said):
                    got = tls.recv(65536)
                    assert got, ("the tunnel closed", len(heard))
                    heard += got
                head, _, rest = heard.partition(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 101 ") and rest == b"first " * 100 + said, heard[:200]

        before = asking.status()["writes_paused"]
        side_by_side(talk, 4, 4)
        assert asking.status()["writes_paused"] > before
        nginx.settled()
        assert not nginx.died(), nginx.died()


def frame(kind, flags=0, stream=0, text=b""):
    """One of HTTP/2 (RFC 9113, section 4.1)."""
    return struct.pack(">I", len(text))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + text


def frames(tls):
    """What comes: kinds, streams and texts, until the connection ends."""
    with tls.makefile("rb") as stream:
        while len(head := stream.read(9)) == 9:
            yield head[3], struct.unpack(">I", head[5:])[0], stream.read(struct.unpack(">I", b"\0" + head[:3])[0])


def http2(port):
    """A connection whose windows never close."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    client.set_alpn_protocols(["h2"])
    raw = socket.create_connection(("127.0.0.1", port), timeout=max(20, ARGS.patience))
    tls = client.wrap_socket(raw, suppress_ragged_eofs=False)
    assert tls.selected_alpn_protocol() == "h2"
    most = (1 << 31) - 1
    tls.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, text=struct.pack(">HI", 4, most))
                + frame(8, text=struct.pack(">I", most - 65535)))
    return tls


def http2_get(path, stream):
    """HEADERS that end their stream: GET, https, a path and an authority, the last two literal (RFC 7541)."""
    return frame(1, 5, stream, b"\x82\x87\x04" + bytes([len(path)]) + path.encode() + b"\x01\x09localhost")


def case_reads_go_on_between_writes_that_pause():
    """Who sends without an end is still listened to: in a tunnel, and on other streams of HTTP/2."""
    port, second = free_port(), free_port()

    def floods(sock):
        sock.setblocking(False)
        stop = b""
        with contextlib.suppress(OSError):
            while stop != b"stop":
                select.select([sock], [sock], [])
                with contextlib.suppress(BlockingIOError):
                    sock.send(bytes(65536))
                with contextlib.suppress(BlockingIOError):
                    got = sock.recv(4)
                    if not got:
                        break
                    stop += got
            sock.setblocking(True)
            sock.sendall(b"stopped")
        sock.close()

    nginx = Nginx(provider=with_card(SEALING_CARD.replace("20000000", "2000000")) + "algorithms = rsa,gcm\n")
    tls = f"ssl_certificate {nginx.folder}/cert.pem; ssl_certificate_key {nginx.folder}/key.pem;"
    nginx.write(f"wattlock_upstream on; server {{ listen 127.0.0.1:{second} ssl http2; {tls} root {nginx.folder}/html; }}", "",
                f"""{other_module("stream")}
                stream {{ server {{ listen 127.0.0.1:{port} ssl; {tls} proxy_pass 127.0.0.1:{listen(floods)}; }} }}""",
                "worker_connections 2048;", ARGS.module, 1)
    with nginx, Asking(nginx) as asking:
        until_the_card_writes(nginx, asking, lambda: nginx.get("/big"), "gcm-seal")
        before = asking.status()["writes_paused"]

        with CLIENT.wrap_socket(socket.create_connection(("127.0.0.1", port), timeout=20)) as tls:
            tls.recv(65536)
            tls.sendall(b"stop")
            heard, most = b"", 64 << 20
            while got := tls.recv(65536):
                heard, most = (heard + got)[-7:], most - len(got)
                assert most > 0, "it does not stop"
            assert heard == b"stopped", heard

        huge = 64 << 20
        with open(nginx.folder / "html/huge", "wb") as file:
            file.truncate(huge)
        with http2(second) as tls:
            tls.sendall(http2_get("/huge", 1))
            asked, answered, got = False, False, 0
            for kind, stream, text in frames(tls):
                got += len(text) if (kind, stream) == (0, 1) else 0
                if not asked and got > 100_000:
                    asked = True
                    tls.sendall(http2_get("/", 3))
                if (kind, stream) == (0, 3):
                    answered = text == b"ok\n"
                    break
            assert answered and got < huge, (answered, got)
        assert asking.status()["writes_paused"] > before + 10
        nginx.settled()
        assert not nginx.died(), nginx.died()


def case_a_tunnel_whose_client_has_said_its_last_word_gets_its_answer():
    """With `proxy_half_close`, `stream` ends a tunnel when both ends have said their last word and nothing is left to write."""
    port, answer = free_port(), random.randbytes(50_000)

    def answers(sock):
        with sock:
            while sock.recv(65536):
                pass
            sock.sendall(answer)

    nginx = Nginx(provider=with_card(SEALING_CARD.replace("20000000", "2000000")) + "algorithms = rsa,gcm\n")
    tls = f"ssl_certificate {nginx.folder}/cert.pem; ssl_certificate_key {nginx.folder}/key.pem;"
    nginx.write("wattlock_upstream on;", "", f"""{other_module("stream")}
                stream {{ server {{ listen 127.0.0.1:{port} ssl; {tls} proxy_half_close on;
                                    proxy_pass 127.0.0.1:{listen(answers)}; }} }}""",
                "worker_connections 2048;", ARGS.module, 1)
    with nginx, Asking(nginx) as asking:
        until_the_card_writes(nginx, asking, lambda: nginx.get("/big"), "gcm-seal")
        before = asking.status()["writes_paused"]
        for _ in range(ARGS.count or 10):
            with socket.create_connection(("127.0.0.1", port), 20) as sock:
                first, client, incoming, outgoing = hello()
                sock.sendall(first)
                while True:
                    try:
                        client.do_handshake()
                        break
                    except ssl.SSLWantReadError:
                        if outgoing.pending:
                            sock.sendall(outgoing.read())
                        incoming.write(sock.recv(65536))
                client.write(b"ask")
                with contextlib.suppress(ssl.SSLWantReadError):
                    client.unwrap()
                sock.sendall(outgoing.read())
                got = b""
                while data := sock.recv(65536):
                    got += data
            # What comes is more than what it says.
            assert len(got) > len(answer), len(got)
        assert asking.status()["writes_paused"] > before + 10
        nginx.settled()
        assert not nginx.died(), nginx.died()


def case_the_last_word_is_said_though_its_write_pauses():
    """nginx sends GOAWAY and closes, or closes when a reload finds that an answer of HTTP/2 has left its streams."""
    # Slow enough that what comes next comes while a write waits.
    card = SEALING_CARD.replace("20000000", "500000000")
    for way in ("wrong", "idle", "behind an answer"):
        port = free_port()
        nginx = Nginx(provider=with_card(card) + "algorithms = rsa,gcm\ngive-up-ms = 20000\n")
        tls = f"ssl_certificate {nginx.folder}/cert.pem; ssl_certificate_key {nginx.folder}/key.pem;"
        nginx.write(f"server {{ listen 127.0.0.1:{port} ssl http2; {tls} root {nginx.folder}/html; }}", "", "",
                    "worker_connections 2048;", ARGS.module, 1)
        with nginx, Asking(nginx) as asking:
            until_the_card_writes(nginx, asking, lambda: nginx.get("/"), "gcm-seal")
            before = asking.status()["writes_paused"]
            with http2(port) as tls:
                come, last = frames(tls), []
                # SETTINGS, WINDOW_UPDATE, and that ours have come: writes of their own.
                last += itertools.islice(come, 3)
                tls.sendall(http2_get("/", 1))
                while way != "behind an answer" and last[-1:] != [(0, 1, b"ok\n")]:
                    last.append(next(come))
                time.sleep(0.2)
                if way == "wrong":
                    tls.sendall(frame(0, 0, 0, b"no stream"))
                else:
                    os.kill(nginx.pid(), signal.SIGHUP)
                # Ends with close_notify: a connection that ends otherwise is an error.
                last += come
                assert (0, 1, b"ok\n") in last, last
                assert way == "behind an answer" or last[-1][0] == 7, (way, last)
            if way == "wrong":
                assert asking.status()["writes_paused"] > before
            assert not nginx.died(), nginx.died()


def case_threshold_polling():
    with Nginx(http="wattlock_poll threshold asymmetric=4 timer=2ms;") as nginx:
        with Load(nginx, 12) as load:
            time.sleep(2)
        load.none_failed(20)
        nginx.settled()
        cells = nginx.status()["runtime"]["cells"]
        assert any(cell["held_ns"] > 0 for cell in cells), cells


def case_http3_handshakes_do_not_pause():
    built = subprocess.run([ARGS.nginx, "-V"], capture_output=True, text=True).stderr
    if "http_v3_module" not in built:
        raise NotRun("this nginx has no HTTP/3")
    if "-quic" not in subprocess.run(["openssl", "s_client", "-help"], capture_output=True, text=True).stderr:
        raise NotRun("this openssl has no client for it")
    with Nginx() as nginx:
        conf = nginx.conf.read_text()
        nginx.conf.write_text(conf.replace(" ssl;", f" ssl; listen 127.0.0.1:{nginx.port} quic;", 1))
        os.kill(nginx.pid(), signal.SIGHUP)
        ask = ["openssl", "s_client", "-quic", "-alpn", "h3", "-connect", f"127.0.0.1:{nginx.port}"]
        environment = {**os.environ, "OPENSSL_CONF": os.devnull}
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}

        def answers():
            return subprocess.run(ask, env=environment, timeout=ARGS.patience, **quiet).returncode == 0

        wait_for(answers, "HTTP/3 after the reload")
        with Load(nginx, 4) as load:
            clients = [subprocess.Popen(ask, env=environment, **quiet) for _ in range(16)]
            assert [client.wait(ARGS.patience) for client in clients] == [0] * 16
            wait_for(lambda: load.good > 20, "20 answers over TCP beside them", 60)
        load.none_failed(20)
        nginx.settled()


# nginx ties each SSL to its connection once. Preloaded, this does it again before the handshake, by the slot's function.
TIE_AGAIN = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <openssl/ssl.h>

int SSL_do_handshake(SSL *ssl)
{
    int (*real)(SSL *) = dlsym(RTLD_NEXT, "SSL_do_handshake");
    int (*tie)(SSL *, int, void *) = dlsym(RTLD_DEFAULT, "wattlock_set_ex_data");
    int *index = dlsym(RTLD_DEFAULT, "ngx_ssl_connection_index");

    if (SSL_in_before(ssl)) {
        tie(ssl, *index, SSL_get_ex_data(ssl, *index));
    }

    return real(ssl);
}
"""


def case_a_connection_that_is_tied_twice_begins_once():
    nginx = Nginx()
    nginx.preload(TIE_AGAIN)
    with nginx:
        before = nginx.status()
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3) * 5:
            assert nginx.get("/", version) == b"ok\n"
        after = nginx.status()
        assert after["worker"] == before["worker"], "the worker was replaced"
        assert after["handshakes"] - before["handshakes"] == 11, (before, after)
        nginx.settled()


# In front of the info callback that nginx gives its TLS contexts; preloaded. It leaves a byte for each handshake done.
LISTEN_IN = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>
#include <openssl/ssl.h>

static void (*theirs)(const SSL *, int, int);

static void listen_in(const SSL *ssl, int where, int ret)
{
    if (where & SSL_CB_HANDSHAKE_DONE) {
        int file = open(HEARD, O_WRONLY|O_APPEND);

        (void) !write(file, "!", 1);
        close(file);
    }

    theirs(ssl, where, ret);
}

void SSL_CTX_set_info_callback(SSL_CTX *context, void (*callback)(const SSL *, int, int))
{
    void (*real)(SSL_CTX *, void (*)(const SSL *, int, int)) = dlsym(RTLD_NEXT, "SSL_CTX_set_info_callback");

    theirs = callback;
    real(context, listen_in);
}
"""


def case_the_info_callback_of_nginx_is_called():
    nginx = Nginx()
    heard = nginx.notes("heard")
    nginx.preload(LISTEN_IN, f'-DHEARD="{heard}"')
    with nginx:
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            before = heard.stat().st_size
            for _ in range(5):
                assert nginx.get("/", version) == b"ok\n"
            assert heard.stat().st_size >= before + 5, (version, before, heard.stat().st_size)
        nginx.settled()


def grows_old(nginx, port):
    """Whether a session ends that is used again and again, each time before its ticket is too old."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    session = None
    for _ in range(7):
        raw = socket.create_connection(("127.0.0.1", port), timeout=max(20, ARGS.patience))
        with context.wrap_socket(raw, session=session) as tls:
            tls.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert read_answer(tls) == b"ok\n"
            if session is not None and not tls.session_reused:
                return True
            session = tls.session
        time.sleep(1)
    return False


def case_sessions_grow_old():
    """nginx's info callback hands a TLS 1.3 session's age on to the one that follows it."""
    apart = free_port()
    nginx = Nginx()
    nginx.write(f"""ssl_session_timeout 3s;
    server {{ listen 127.0.0.1:{apart} ssl; ssl_protocols TLSv1.3; wattlock off; root {nginx.folder}/html;
      ssl_certificate_key {nginx.folder}/key.pem; ssl_certificate {nginx.folder}/cert.pem; }}""", "", "",
                "worker_connections 2048;", ARGS.module, 1)
    with nginx:
        if not grows_old(nginx, apart):
            raise NotRun("this nginx lets TLS 1.3 sessions live for as long as they are used")
        assert grows_old(nginx, nginx.port), "used again and again it lives for ever"
        nginx.settled()


def case_nonsense_is_refused_by_the_configuration_test():
    for http, words in (("wattlock_poll sometimes;", "adaptive, heuristic or threshold"),
                        ("wattlock_poll threshold asymmetric=0;", "1 to 65535"),
                        ("wattlock_poll threshold timer=2s;", "1ms to 1s"),
                        ("wattlock_poll heuristic asymmetric=4;", "no parameter"),
                        ("wattlock_poll threshold loud=1;", "parameters of threshold"),
                        ("wattlock_poll adaptive; wattlock_poll adaptive;", "is duplicate"),
                        ("wattlock_set policy fastest;", "adaptive"),
                        ("wattlock_set speed 1;", "no such setting"),
                        ("wattlock_set engines emulated;", "this machine has"),
                        ("wattlock_set emulate dh8970; wattlock_set emulate no-such-card;", "no-such-card"),
                        ("wattlock_set algorithms gcm;", "openssl.cnf"),
                        ("wattlock maybe;", "must be")):
        nginx = Nginx()
        nginx.write(http if http.startswith("wattlock_") else "", "" if http.startswith("wattlock_") else http, "",
                    "", ARGS.module, 1)
        tested = subprocess.run([ARGS.nginx, "-t", "-c", nginx.conf, "-p", nginx.folder], env=nginx.env,
                                capture_output=True, text=True)
        shutil.rmtree(nginx.folder)
        assert tested.returncode != 0 and words in tested.stderr, (http, tested.stderr)


def case_settings_may_need_each_other_in_any_order():
    lines = ["wattlock_set emulate dh8970;", "wattlock_set engines emulated,instruction;"]
    for http in (lines, lines[::-1]):
        with Nginx(" ".join(http)) as nginx:
            engines = {engine["engine"] for engine in nginx.status()["runtime"]["engines"]}
            assert engines == {"emulated", "instruction"}, engines


def other_module(name):
    """The line that loads nginx's own module for other protocols, where it is not a part of the program."""
    flags = subprocess.run([ARGS.nginx, "-V"], capture_output=True, text=True).stderr.split()
    if f"--with-{name}" in flags:
        return ""
    folder = next((flag.split("=")[1] for flag in flags if flag.startswith("--modules-path=")), "")
    module = Path(folder, f"ngx_{name}_module.so")
    assert module.exists(), f"this nginx has no module for {name} (Debian: libnginx-mod-{name})"
    return f"load_module {module};"


def lines_of(sock):
    """What was said, line by line, without the line ends."""
    text = b""
    while got := sock.recv(4096):
        *whole, text = (text + got).split(b"\r\n")
        yield from whole


def listen(serve):
    """A server on loopback, a thread for each connection; its port."""
    server = socket.create_server(("127.0.0.1", 0), backlog=256)

    def accept():
        while True:
            with contextlib.suppress(OSError):
                threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return server.getsockname()[1]


def side_by_side(talk, threads=8, times=10):
    """So many threads talk so many times; none may fail."""
    failed = []

    def run():
        for turn in range(times):
            try:
                talk(turn)
            except Exception as error:
                failed.append(repr(error))

    running = [threading.Thread(target=run) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert not failed, failed[:5]


def protocols(block, talk):
    """Another protocol's servers, `block` of main's level, with handshakes that may not pause, and that may."""
    for upstream in ("off", "on"):
        nginx = Nginx()
        nginx.write(f"wattlock_upstream {upstream};", "", block.replace("FOLDER", str(nginx.folder)),
                    "worker_connections 2048;", ARGS.module, 1)
        with nginx:
            side_by_side(talk)
            nginx.settled()
            status = nginx.status()
            # Only these clients came side by side: one that comes alone has no batch-mate to pause for.
            assert (status["paused"] > 0) == (upstream == "on"), (upstream, status)


def case_stream_with_tls():
    def echo(sock):
        while data := sock.recv(65536):
            sock.sendall(data)

    port, behind = free_port(), listen(echo)
    block = f"""{other_module("stream")}
stream {{ server {{ listen 127.0.0.1:{port} ssl; proxy_pass 127.0.0.1:{behind};
  ssl_certificate FOLDER/cert.pem; ssl_certificate_key FOLDER/key.pem; }} }}"""

    def talk(turn):
        said = random.randbytes(20_000)
        with CLIENT.wrap_socket(socket.create_connection(("127.0.0.1", port), timeout=20)) as tls:
            tls.sendall(said)
            heard = b""
            while len(heard) < len(said):
                got = tls.recv(65536)
                assert got, "the tunnel closed"
                heard += got
            assert heard == said

    protocols(block, talk)


def case_mail_with_tls():
    def mailbox(sock):
        sock.sendall(b"+OK behind\r\n")
        for line in lines_of(sock):
            sock.sendall(b"+OK " + line + b"\r\n")
            if line == b"QUIT":
                sock.close()
                return

    behind = listen(mailbox)

    def permit(sock):
        for line in lines_of(sock):
            if not line:
                sock.sendall(b"HTTP/1.0 200 OK\r\nAuth-Status: OK\r\nAuth-Server: 127.0.0.1\r\n"
                             b"Auth-Port: %d\r\n\r\n" % behind)
                sock.close()
                return

    first, later = free_port(), free_port()
    block = f"""{other_module("mail")}
mail {{ auth_http 127.0.0.1:{listen(permit)}/; ssl_certificate FOLDER/cert.pem; ssl_certificate_key FOLDER/key.pem;
  server {{ listen 127.0.0.1:{first} ssl; protocol pop3; }}
  server {{ listen 127.0.0.1:{later}; protocol pop3; starttls on; }} }}"""

    def talk(turn):
        sock = socket.create_connection(("127.0.0.1", later if turn % 2 else first), timeout=20)
        if turn % 2:
            assert sock.recv(4096).startswith(b"+OK")
            sock.sendall(b"STLS\r\n")
            assert sock.recv(4096).startswith(b"+OK")
        with CLIENT.wrap_socket(sock) as tls:
            heard = lines_of(tls)
            assert turn % 2 or next(heard).startswith(b"+OK")
            for word in (b"USER somebody", b"PASS secret", b"LIST"):
                tls.sendall(word + b"\r\n")
                answer = next(heard)
                # The first is answered by nginx, the others from behind it.
                assert answer.startswith(b"+OK") and (word[:4] == b"USER" or word in answer), (word, answer)
            tls.sendall(b"QUIT\r\n")

    protocols(block, talk)


def side_by_side_hellos(nginx, name="localhost", rounds=6, clients=64):
    """So many clients, whose first messages come together, so many times; each is answered."""
    for turn in range(rounds):
        names = [name.replace("NUMBER", str(turn * clients + at)) for at in range(clients)]
        waiting = [(socket.create_connection(("127.0.0.1", nginx.port), max(20, ARGS.patience)), hello(one))
                   for one in names]
        # The worker finds them all at once, however fast these clients are.
        worker = nginx.workers()
        for pid in worker:
            os.kill(pid, signal.SIGSTOP)
        for sock, (first, *_) in waiting:
            sock.sendall(first)
        for pid in worker:
            os.kill(pid, signal.SIGCONT)
        for sock, (_, *rest) in waiting:
            with sock:
                finish(sock, *rest)


# Of signatures when clients come together: `adaptive` makes passes of four where the machine is busy, else of eight.
HALF_A_PASS = 3.9


def handshakes_on_guarded_stacks(prepare, name, certificates=("rsa:2048", "ec -pkeyopt ec_paramgen_curve:P-256")):
    """What `prepare` makes of an nginx serves clients that come together, on a job's stack or on any other that is not
    overrun, and their handshakes are batched."""
    for certificate in certificates:
        nginx = Nginx(main="pcre_jit on;", certificate=certificate)
        nginx.preload("guard.c", "-O1")
        prepare(nginx)
        with nginx:
            worker = nginx.status()["worker"]
            side_by_side_hellos(nginx, name)
            nginx.settled()
            status = nginx.status()
            batch = nginx.mean_batch()
            assert status["worker"] == worker and not nginx.died(), nginx.died()
            assert status["paused"] > 100 and (batch is None or batch > HALF_A_PASS), (batch, status)
            print(f"{certificate.split()[0]}: {status['paused']} of {status['handshakes']} paused, mean batch {batch:.1f}"
                  if batch else "no lanes here")


def with_lines(nginx, before, lines):
    """More lines of configuration, before one that is there."""
    conf = nginx.conf.read_text()
    assert before in conf
    nginx.conf.write_text(conf.replace(before, lines.replace("FOLDER", str(nginx.folder)) + before, 1))


def case_regular_expression_in_a_server_name():
    handshakes_on_guarded_stacks(
        lambda nginx: with_lines(nginx, "    root ", '    server_name "~^(.+)\\.example\\.com$";\n'), "aNUMBER.example.com")


def case_regular_expression_behind_the_certificate():
    def prepare(nginx):
        with_lines(nginx, "  server {", """  map $ssl_server_name $name { "~^(.+)\\.example\\.com$" cert; default cert; }
  map $ssl_server_name $key { "~^(?<which>.+)\\.example\\.com$" key; default key; }\n""")
        conf = nginx.conf.read_text()
        nginx.conf.write_text(conf.replace(f"{nginx.folder}/cert.pem", f"{nginx.folder}/$name.pem")
                              .replace(f"{nginx.folder}/key.pem", f"{nginx.folder}/$key.pem"))
        (nginx.folder / "key.pem").chmod(0o644)

    handshakes_on_guarded_stacks(prepare, "aNUMBER.example.com")


LUA = r"""    ssl_certificate_by_lua_block {
      local name = require("ngx.ssl").server_name() or "a.example.com"
      local found, why = ngx.re.match(name, [[^(\w+)\.(example)\.com$]], "jo")
      if not found or found[2] ~= "example" then ngx.log(ngx.ERR, "no match: ", why); ngx.exit(ngx.ERROR) end
    }
"""


def with_lua(nginx, lines):
    flags = subprocess.run([ARGS.nginx, "-V"], capture_output=True, text=True).stderr.split()
    folder = Path(next((flag.split("=")[1] for flag in flags if flag.startswith("--modules-path=")), "/nowhere"))
    modules = [folder / "ndk_http_module.so", folder / "ngx_http_lua_module.so"]
    if not all(module.exists() for module in modules):
        raise NotRun("this nginx has no module for Lua (Debian: libnginx-mod-http-lua)")
    with_lines(nginx, "worker_processes", "".join(f"load_module {module};\n" for module in modules))
    with_lines(nginx, "    root ", lines)


def case_lua_before_the_certificate():
    handshakes_on_guarded_stacks(lambda nginx: with_lua(nginx, LUA), "aNUMBER.example.com")


ASKS = r"""    ssl_certificate_by_lua_block {
      if require("ngx.ssl").server_name() ~= "asks" then return end
      local other = ngx.socket.tcp()
      assert(other:connect("127.0.0.1", PORT))
      if other:getreusedtimes() == 0 then assert(other:sslhandshake(false, nil, false)) end
      local round = false
      assert(ngx.timer.at(0, function() round = true end))
      assert(other:send("ping\n"))
      assert(not round, "the loop came round")
      assert(other:receive() == "pong")
      assert(other:setkeepalive(60000, 4))
    }
"""


def case_a_call_on_another_connection_inside_a_handshake_does_not_pause_it():
    """For a record that Lua sends by a pooled connection, in the handshake's job, the call waits; what else the loop has
    does not come round: the connection could be freed in the midst of the call."""
    card = SLOW_CARD.replace("20000000", "200000") + "table aes-128-gcm-seal,aes-256-gcm-seal 0:50000\n"
    nginx = Nginx(provider=with_card(card, "offload") + "algorithms = rsa,gcm\n")
    other = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    other.load_cert_chain(nginx.folder / "cert.pem", nginx.folder / "key.pem")
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    asked = []

    def answer(sock):
        with contextlib.suppress(OSError), other.wrap_socket(sock, server_side=True) as tls, tls.makefile("rb") as lines:
            asked.append(0)
            for _ in lines:
                asked[-1] += 1
                tls.sendall(b"pong\n")

    def serve(server):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        with_lua(nginx, ASKS.replace("PORT", str(server.getsockname()[1])))
        with nginx, Asking(nginx) as asking:
            def sealed(name):
                """By the card, in a handshake."""
                def so_far():
                    cells = asking.status()["runtime"]["cells"]
                    cells = [cell for cell in cells if cell["engine"] == "emulated" and cell["kind"].endswith("seal")]
                    return sum(cell["requests"] for cell in cells)
                before = so_far()
                with client.wrap_socket(socket.create_connection(("127.0.0.1", nginx.port), 20), server_hostname=name) as tls:
                    tls.sendall(b"GET / HTTP/1.0\r\n\r\n")
                    assert read_answer(tls) == b"ok\n"
                return so_far() - before

            wait_for(lambda: sealed("alone") == sealed("alone") > 0, "the card to seal")
            alone = sealed("alone")
            # The first connects, too.
            assert [sealed("asks") for _ in range(6)][1:] == [alone + 1] * 5
            assert asked == [6], asked
            nginx.settled()
            assert not nginx.died(), nginx.died()


def s_client(port, *more, said="", env=None):
    """What OpenSSL's client prints, which verifies nothing and has no provider of ours unless `env` says so."""
    env = {**os.environ, "OPENSSL_CONF": os.devnull, **(env or {})}
    done = subprocess.run(["timeout", "60", "openssl", "s_client", "-connect", f"127.0.0.1:{port}", *map(str, more)],
                          input=said, capture_output=True, text=True, env=env)
    return done.stdout + done.stderr


# What a server's handshake calls in a job, whatever the protocol behind it, and what a client's does.
SERVERS = {"name", "cert", "alpn", "session-new", "session-get", "session-remove", "verify", "client-hello", "keylog",
           "status", "info", "message", "psk-find", "psk-server"}
CLIENTS = {"psk-use", "psk-client", "info", "message", "keylog", "cert", "verify"}


def planted_frames(block, port, expected, flags=(), http="", server="", talk=None):
    """Every callback has a large frame: handshakes with the server at `port` succeed and call all that is expected."""
    for frame in (64 << 10, 1 << 20):
        nginx = Nginx()
        noted = nginx.notes("noted")
        nginx.preload("frames.c", f"-DFRAME={frame}", f'-DNOTED="{noted}"', *flags)
        fill = lambda text: text.replace("FOLDER", str(nginx.folder)).replace("INNER", str(nginx.port))
        nginx.write("wattlock_upstream on; ssl_verify_client optional_no_ca;\n" + fill(http), fill(server), fill(block),
                    "worker_connections 2048;", ARGS.module, 1)
        nginx.conf.write_text(nginx.conf.read_text().replace("ssl_session_cache off;", "ssl_session_cache shared:s:1m;"))
        with nginx:
            worker = nginx.status()["worker"]
            # Not what the wait for the start has called.
            noted.write_text("")
            os.kill(nginx.pid(), signal.SIGHUP)
            wait_for(lambda: nginx.status()["worker"] != worker, "the reload")
            folder, at = nginx.folder, port or nginx.port
            more = ["-servername", "localhost", "-alpn", "h2,http/1.1,pop3", "-status", "-cert", folder / "cert.pem", "-key",
                    folder / "key.pem"]
            for version in ("-tls1_2", "-tls1_3"):
                for session in ("-sess_out", "-sess_in"):
                    told = s_client(at, version, *more, session, folder / "session", said="Q\n" if version == "-tls1_2" else "")
                    assert "CONNECTED" in told and "Cipher is (NONE)" not in told and "Cipher" in told, told
            # An identity that the server does not know.
            s_client(at, "-tls1_3", "-psk", "0011", *more)
            s_client(at, "-tls1_2", "-no_ticket", *more, "-sess_out", folder / "session")
            told = s_client(at, "-tls1_2", "-no_ticket", *more, "-sess_in", folder / "session")
            if "session-get" in expected:
                assert "Reused, TLSv1.2" in told, told
            if talk is not None:
                talk(nginx)
            called = {line[4:] for line in noted.read_text().splitlines() if line.startswith("job ")}
            assert expected <= called, (expected - called, noted.read_text().splitlines())
            assert not nginx.died(), nginx.died()
            nginx.settled()


def case_planted_frames_in_http():
    # nginx's own keys for tickets are gone then: which of the two interfaces is in force, the library says.
    planted_frames("", None, SERVERS | {"ticket-old"}, ["-DTICKETS_OLD"])
    planted_frames("", None, SERVERS | {"ticket-evp"}, ["-DTICKETS_EVP"])


UP = """location /up { proxy_pass https://127.0.0.1:INNER/; proxy_ssl_verify on; proxy_ssl_trusted_certificate FOLDER/cert.pem;
      proxy_ssl_name localhost; proxy_ssl_server_name on; proxy_ssl_certificate FOLDER/cert.pem;
      proxy_ssl_certificate_key FOLDER/key.pem; proxy_ssl_protocols TLSv1.2 TLSv1.3; }"""


def case_planted_frames_in_upstreams():
    def talk(nginx):
        for _ in range(3):
            assert nginx.get("/up") == b"ok\n"

    planted_frames("", None, SERVERS | CLIENTS, server=UP, talk=talk)


def case_planted_frames_in_stream():
    port = free_port()
    block = f"""{other_module("stream")}
stream {{ server {{ listen 127.0.0.1:{port} ssl; ssl_protocols TLSv1.2 TLSv1.3; proxy_pass 127.0.0.1:INNER; proxy_ssl on; proxy_ssl_protocols TLSv1.2 TLSv1.3; proxy_ssl_verify on;
  proxy_ssl_trusted_certificate FOLDER/cert.pem; proxy_ssl_name localhost; ssl_verify_client optional_no_ca;
  ssl_certificate FOLDER/cert.pem; ssl_certificate_key FOLDER/key.pem; ssl_session_cache shared:t:1m; }} }}"""
    planted_frames(block, port, SERVERS | CLIENTS)


def case_planted_frames_in_mail():
    port = free_port()
    block = f"""{other_module("mail")}
mail {{ auth_http 127.0.0.1:1/; ssl_certificate FOLDER/cert.pem; ssl_certificate_key FOLDER/key.pem;
  ssl_verify_client optional_no_ca; ssl_session_cache shared:t:1m; ssl_protocols TLSv1.2 TLSv1.3;
  server {{ listen 127.0.0.1:{port} ssl; protocol pop3; }} }}"""
    planted_frames(block, port, SERVERS)


def large_stacks(pid):
    """Mappings of a process that are stacks like a worker's own, above inaccessible pages."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    ranges = [(*(int(end, 16) for end in line.split()[0].split("-")), line.split()[1]) for line in lines]
    stack = resource.getrlimit(resource.RLIMIT_STACK)[0]
    size = 8 << 20 if stack == resource.RLIM_INFINITY else min(max(stack, 2 << 20), 64 << 20) & ~0xffff
    whole = [(low, high) for low, high, mode in ranges if mode.startswith("rw")]
    guards = [high for low, high, mode in ranges if mode.startswith("---")]
    # Neighbours are one mapping where the kernel joins them; it does not join across a guard.
    return sum(high - low == size and low in guards for low, high in whole)


def case_nothing_is_left_of_handshakes_that_end_at_any_stage():
    """Clients leave at every stage, or stay; there are timeouts, reloads and a binary upgrade meanwhile."""
    rng = random.Random(11)
    nginx = Nginx(provider=with_card(SLOW_CARD), server="ssl_early_data on;")
    nginx.write("client_header_timeout 300ms; keepalive_timeout 2s;", "ssl_early_data on;", "", "worker_connections 2048;",
                ARGS.module, 1)

    def leave(stage):
        sock = socket.create_connection(("127.0.0.1", nginx.port), max(20, ARGS.patience))
        with contextlib.suppress(OSError), sock:
            first, client, incoming, outgoing = hello()
            if stage == 0:
                return
            if stage == 1:
                sock.sendall(first[:rng.randrange(1, len(first))])
                return
            sock.sendall(first)
            if stage == 2:
                # A FIN wakes the job, which waits on; a reset ends it.
                sock.shutdown(socket.SHUT_WR)
                time.sleep(rng.uniform(0, 0.03))
                return
            if stage == 3:
                time.sleep(rng.uniform(0, 0.05))
                reset(sock)
                return
            if stage == 4:
                sock.recv(4096)
                sock.sendall(rng.randbytes(50))
                sock.recv(4096)
                return
            finish(sock, client, incoming, outgoing)

    with nginx:
        leave(5)
        nginx.settled()
        worker = nginx.status()["worker"]

        def storm(times):
            def run():
                for _ in range(times):
                    with contextlib.suppress(AssertionError):
                        leave(rng.randrange(6))
            threads = [threading.Thread(target=run) for _ in range(24)]
            for thread in threads:
                thread.start()
            return threads

        def over(threads):
            for thread in threads:
                thread.join()
            nginx.settled()

        over(storm(ARGS.count or 12))
        assert nginx.status()["worker"] == worker and not nginx.died(), nginx.died()
        status = nginx.counted()
        assert status["aborted"] > 0 < status["completed"] and status["paused"] > 0, status
        fds, stacks = len(os.listdir(f"/proc/{worker}/fd")), large_stacks(worker)
        assert 0 < stacks <= 64, stacks
        over(storm(ARGS.count or 12))
        assert len(os.listdir(f"/proc/{worker}/fd")) <= fds + 2
        # As many as paused together, and no more than are kept for the next.
        assert large_stacks(worker) <= 64, (stacks, large_stacks(worker))

        threads = storm(ARGS.count or 12)
        for _ in range(3):
            time.sleep(0.3)
            os.kill(nginx.pid(), signal.SIGHUP)
        over(threads)
        old, threads = nginx.pid(), storm(ARGS.count or 12)
        os.kill(old, signal.SIGUSR2)
        wait_for(lambda: (nginx.folder / "nginx.pid.oldbin").exists() and nginx.pid() != old, "a new master")
        os.kill(old, signal.SIGQUIT)
        over(threads)
        wait_for(lambda: not (nginx.folder / "nginx.pid.oldbin").exists(), "the old master to leave")
        assert not nginx.died(), nginx.died()
        assert nginx.get("/") == b"ok\n"


def case_without_address_space_for_stacks_handshakes_do_not_pause():
    """Never on a job's 32 KiB: frames of 1 MiB pass then, too."""
    nginx = Nginx()
    noted = nginx.notes("noted")
    nginx.preload(NO_STACKS + Path(__file__).with_name("frames.c").read_text(), f"-DFRAME={1 << 20}", f'-DNOTED="{noted}"')
    with nginx:
        side_by_side_hellos(nginx, rounds=2, clients=16)
        nginx.settled()
        status = nginx.status()
        assert status["paused"] == 0 and not nginx.died(), (status, nginx.died())
        assert "plain cert" in noted.read_text() and "job " not in noted.read_text(), noted.read_text()


# No mapping for a stack of 2 MiB or more is to be had.
NO_STACKS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/mman.h>

void *mmap(void *at, size_t size, int protection, int flags, int file, off_t offset)
{
    void *(*real)(void *, size_t, int, int, int, off_t) = dlsym(RTLD_NEXT, "mmap");

    if ((flags & MAP_STACK) && size > (2 << 20)) {
        errno = ENOMEM;
        return MAP_FAILED;
    }

    return real(at, size, protection, flags, file, offset);
}

void *mmap64(void *at, size_t size, int protection, int flags, int file, off_t offset)
{
    return mmap(at, size, protection, flags, file, offset);
}
"""


def case_early_data_does_not_end_batches():
    """libssl says that such a handshake is done before the client's last message has come."""
    certificate = "ec -pkeyopt ec_paramgen_curve:P-256"
    batches, paused = {}, {}
    for early in ("off", "on"):
        with Nginx(server=f"ssl_early_data {early};", certificate=certificate) as nginx:
            side_by_side_hellos(nginx)
            nginx.settled()
            batches[early], paused[early] = nginx.mean_batch(), nginx.counted()["paused"]
            if early == "on":
                (segments, _) = segments_of_a_handshake(nginx, nginx.port)
                assert segments == 2, f"tickets came apart: {segments} segments"
                ticket, data = nginx.folder / "ticket", nginx.folder / "data"
                data.write_text("GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                s_client(nginx.port, "-tls1_3", "-ign_eof", "-sess_out", ticket, said=data.read_text())
                told = s_client(nginx.port, "-tls1_3", "-ign_eof", "-sess_in", ticket, "-early_data", data)
                assert "Early data was accepted" in told, told
                side_by_side_hellos(nginx, rounds=2)
                nginx.settled()
    assert paused["on"] > 100 < paused["off"], paused
    if batches["on"] is not None:
        assert batches["on"] > HALF_A_PASS < batches["off"], batches
    print(f"mean batch {batches}, paused {paused}")


def case_a_client_that_wakes_its_handshake_is_counted_once():
    with Nginx(provider=with_card(SLOW_CARD)) as nginx, Asking(nginx) as asking:
        before = asking.status()
        for _ in range(ARGS.count or 10):
            with socket.create_connection(("127.0.0.1", nginx.port)) as sock:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.sendall(hello()[0])
                for _ in range(4):
                    time.sleep(0.003)
                    sock.sendall(b"\x14\x03\x03\x00\x01\x01")
                sock.shutdown(socket.SHUT_WR)
                time.sleep(0.005)
        wait_for(lambda: asking.status()["in_handshake"] == 0, "all to end")
        after = asking.status()
        begun, paused = (after[name] - before[name] for name in ("handshakes", "paused"))
        assert begun == (ARGS.count or 10) and 0 < paused <= begun, (before, after)
        assert after["aborted"] - before["aborted"] == begun, (before, after)


def case_the_status_page_shows_all_workers():
    with Nginx(workers=3) as nginx:
        def all_of_them():
            status = nginx.status()
            return len(status["workers"]) == 3 and all(row["completed"] > 0 for row in status["workers"])

        with Load(nginx, 12) as load:
            wait_for(all_of_them, "all workers to serve", 60)
        nginx.settled()
        # Whichever worker is asked says the same of all, and none is asked for itself.
        status = nginx.counted()
        pids = sorted(row["worker"] for row in status["workers"])
        assert load.good <= status["completed"] and status["worker"] in pids, status
        assert status["runtime"]["processes"] == pids, status["runtime"]["processes"]
        signatures = sum(cell["requests"] for cell in status["runtime"]["cells"] if cell["kind"] == "rsa-2048-private")
        assert signatures >= load.good, (signatures, load.good)
        text = nginx.get("/status?format=prometheus").decode()
        for pid in pids:
            assert f'wattlock_nginx_completed_total{{worker="{pid}"}}' in text, text
            assert f'wattlock_requests_total{{worker="{pid}",' in text, text
        assert len(set(text.splitlines())) == len(text.splitlines()), "a sample is there twice"
        page = nginx.get("/status?format=html").decode()
        assert all(f"<tr><td>{pid}<td>active" in page for pid in pids) and "<tr><th>all<td>" in page, page
        # A reload replaces them, and so does a kill.
        os.kill(nginx.pid(), signal.SIGHUP)
        wait_for(lambda: not {row["worker"] for row in nginx.status()["workers"]} & set(pids), "other workers")
        gone = nginx.status()["worker"]
        os.kill(gone, signal.SIGKILL)
        # A connection whose event it still gets, and does not take, would wait for the next one's.
        wait_for(lambda: gone not in nginx.workers(), "it to be gone")
        wait_for(lambda: len(rows := nginx.status()["workers"]) == 3 and gone not in (row["worker"] for row in rows),
                 "another in its place")
        nginx.counted()


def case_settings_that_cannot_be_taken_are_said_not_to_be_in_force():
    """The master may read a card's file that a worker may not: so the configuration is good, and each worker fails."""
    if os.geteuid() != 0:
        raise NotRun("workers are of the same user as their master")
    card = Path(tempfile.mkstemp(prefix="wattlock-card-")[1])
    card.write_text(CARD)
    card.chmod(0o600)
    try:
        with Nginx(http=f"wattlock_poll heuristic; wattlock_set emulate {card};",
                   provider="poll = threshold asymmetric=7") as nginx:
            (row,) = nginx.status()["workers"]
            assert row["active"] and row["polling"] == "threshold asymmetric=7", row
            assert str(card) in row["settings_refused"], row
            log = nginx.log()
            assert "active, threshold asymmetric=7 polling" in log and "heuristic polling" not in log, log
            assert "no wattlock_set and no wattlock_poll is in force" in log, log
            assert b"settings refused" in nginx.get("/status?format=html")
            card.chmod(0o644)
            os.kill(nginx.pid(), signal.SIGHUP)
            # Of all workers that there are: the one before may still answer.
            wait_for(lambda: all(row["polling"] == "heuristic" and row["settings_refused"] == ""
                                 for row in nginx.status()["workers"]), "the settings to be in force")
            assert "active, heuristic polling" in nginx.log()
    finally:
        card.unlink()


@contextlib.contextmanager
def half_a_processor():
    """Words that start a program in a control group with half a processor (cgroups(7)), or none where we may make none:
    then whoever uses this stops and continues it by hand."""
    for folder, limits in (("", {"cpu.max": "50000 100000"}),
                           ("cpu", {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "50000"})):
        root = Path("/sys/fs/cgroup", folder)
        group = root / f"wattlock-{os.getpid()}"
        if not (root / "cgroup.procs").exists():
            continue
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            for name, value in limits.items():
                (group / name).write_text(value)
        except OSError:
            group.rmdir()
            continue
        try:
            yield ["sh", "-c", f"echo $$ >{group}/cgroup.procs && exec \"$@\"", "sh"]
        finally:
            wait_for(lambda: not (group / "cgroup.procs").read_text(), "the group to empty")
            group.rmdir()
        return
    yield []


def case_half_a_processor():
    """As in a container: for half of every tenth of a second nothing of nginx runs."""
    with half_a_processor() as before, Nginx(before=before) as nginx:
        over = threading.Event()
        worker = nginx.status()["worker"]

        def interrupt():
            while not over.is_set():
                os.kill(worker, signal.SIGSTOP)
                time.sleep(0.05)
                os.kill(worker, signal.SIGCONT)
                time.sleep(0.05)

        thread = threading.Thread(target=interrupt if not before else over.wait)
        thread.start()
        try:
            for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
                with Load(nginx, 16, version) as load:
                    time.sleep(2)
                load.none_failed(20)
        finally:
            over.set()
            thread.join()
        nginx.settled()
        assert nginx.status()["paused"] > 0
    print("by", "a control group" if before else "signals")


def case_memory_stays_flat():
    """Handshakes with aborts among them; the worker's memory after a warm-up must not grow with their number."""
    count = ARGS.count or 3000

    def resident(pid):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096

    def descriptors(pid):
        return len(os.listdir(f"/proc/{pid}/fd"))

    with Nginx() as nginx:
        def rounds(number):
            for turn in range(number // 50):
                clients = [(socket.create_connection(("127.0.0.1", nginx.port)), hello()) for _ in range(50)]
                for sock, (first, *_) in clients:
                    sock.settimeout(20)
                    sock.sendall(first)
                # Of five clients one is gone at once, one when it has the server's answer, and three ask for a page.
                for at, (sock, (_, *rest)) in enumerate(clients):
                    with sock:
                        if at % 5 == turn % 5:
                            reset(sock)
                        elif at % 5 == (turn + 1) % 5:
                            assert sock.recv(4096)
                        else:
                            finish(sock, *rest)
            nginx.settled()
        rounds(min(max(count // 4, 1000), 10000))
        worker = nginx.status()["worker"]
        before, fds = resident(worker), descriptors(worker)
        rounds(count)
        after = resident(worker)
        assert nginx.status()["worker"] == worker, "the worker was replaced"
        assert descriptors(worker) <= fds + 4, (fds, descriptors(worker))
        assert after - before < 4 << 20, f"{count} handshakes: {before} to {after} bytes"
        print(f"{count} handshakes: resident {before} to {after} bytes, descriptors {fds} to {descriptors(worker)}")


CASES = {name[5:]: function for name, function in globals().items() if name.startswith("case_")}


def main():
    global ARGS
    built = Path(__file__).resolve().parents[2] / os.environ.get("CARGO_TARGET_DIR", "target")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=[*CASES, "list", "all"])
    parser.add_argument("--nginx", default=shutil.which("nginx"))
    parser.add_argument("--module", type=os.path.abspath, default=built / "nginx/ngx_http_wattlock_module.so")
    parser.add_argument("--other-module", type=os.path.abspath,
                        default=built / "nginx/other/ngx_http_wattlock_module.so")
    parser.add_argument("--provider", type=os.path.abspath, default=built / "release/libwattlock_provider.so")
    parser.add_argument("--count", type=int)
    parser.add_argument("--under", default="", help="a command that is to run nginx: valgrind, say")
    parser.add_argument("--single", action="store_true", help="no master and no daemon: one process")
    parser.add_argument("--patience", type=float, default=15, help="seconds that something may take to come about")
    ARGS = parser.parse_args()
    if ARGS.name == "list":
        print("\n".join(CASES))
        return
    for name in CASES if ARGS.name == "all" else [ARGS.name]:
        try:
            CASES[name]()
        except NotRun as why:
            print(f"{name}: not run: {why}", flush=True)
        else:
            print(f"{name}: good", flush=True)


if __name__ == "__main__":
    main()
