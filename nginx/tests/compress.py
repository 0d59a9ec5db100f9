#!/usr/bin/env python3
"""Responses compressed in the place of nginx's gzip filter, by the real nginx, decoded by zlib, zstd and curl.

    compress.py NAME|all [--nginx PROGRAM] --module M.so --provider P.so [--count N]

Each scenario starts an nginx of its own on loopback ports. Every response must decode to its content, whatever came between;
what the module declines, nginx's own gzip serves. Scenarios are the functions whose names begin with `case_`; `compress.py
list` names them.
"""

import argparse
import contextlib
import os
import random
import re
import select
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
import zlib

import survive
from survive import free_port, wait_for

SIZES = [0, 1, 2, 255, 4095, 4096, 4097, 16384, 32767, 32768, 32769, 65535, 65536, 65537, 131071, 131072, 131073,
         262143, 262144, 262145, 1 << 20]
WORDS = [b"lock", b"canal", b"<p>", b"</p>\n", b"water ", b"ships ", b"the ", b"of ", b"gate, "]


def text(size, seed=1):
    dice = random.Random(seed)
    out = bytearray()
    while len(out) < size:
        out += dice.choice(WORDS)
        if dice.random() < 0.3:
            out += b"%x " % dice.getrandbits(24)
    return bytes(out[:size])


def content(size, seed):
    return [text(size, seed), random.Random(seed).randbytes(size), b"\0" * size][seed % 3]


def ungzip(data):
    """Exactly one member."""
    decoder = zlib.decompressobj(31)
    out = decoder.decompress(data) + decoder.flush()
    assert decoder.eof and not decoder.unused_data, "not one whole member"
    return out


def unzstd(data):
    """One frame whose window is one that a browser takes."""
    listed = subprocess.run(["zstd", "-dc", "-M8MB"], input=data, capture_output=True)
    assert listed.returncode == 0, listed.stderr
    return listed.stdout


def decoded(headers, body):
    coding = headers.get("content-encoding")
    return {None: bytes, "gzip": ungzip, "zstd": unzstd}[coding](body)


class Connection:
    """HTTP/1.1 by hand: what comes, when it comes."""

    def __init__(self, port, receive=None):
        """`receive`: bytes that the kernel takes for a client that does not read."""
        self.socket = socket.socket()
        if receive is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
        self.socket.settimeout(20)
        self.socket.connect(("127.0.0.1", port))
        self.file = self.socket.makefile("rb")

    def ask(self, path, accept="gzip", method="GET", version="1.1", more=""):
        self.socket.sendall(f"{method} {path} HTTP/{version}\r\nHost: a\r\nAccept-Encoding: {accept}\r\n{more}\r\n"
                            .encode())
        status = int(self.file.readline().split()[1])
        headers = {}
        while (line := self.file.readline().strip()):
            name, _, value = line.decode().partition(": ")
            headers[name.lower()] = value
        return status, headers

    def chunk(self):
        size = int(self.file.readline(), 16)
        data = self.file.read(size)
        self.file.readline()
        return data

    def body(self, headers):
        if headers.get("transfer-encoding") == "chunked":
            out = b""
            while (piece := self.chunk()):
                out += piece
            return out
        if "content-length" in headers:
            return self.file.read(int(headers["content-length"]))
        return self.file.read()

    def get(self, path, *rest, **more):
        status, headers = self.ask(path, *rest, **more)
        return status, headers, self.body(headers)

    def close(self):
        self.socket.close()


class Upstream(socketserver.ThreadingTCPServer):
    """Answers by what the path says: /chunked|sized|short|dies/SIZE/SEED, /events."""

    daemon_threads = True
    allow_reuse_address = True

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            with contextlib.suppress(OSError):
                self.answer()

        def answer(self):
            path = self.rfile.readline().split()[1].decode()
            while self.rfile.readline().strip():
                pass
            how, *rest = path.strip("/").split("/")
            if how == "events":
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
                for number in range(5):
                    self.wfile.write(b"data: %d\n\n" % number)
                    self.server.go.wait(20)
                    self.server.go.clear()
                return
            body = content(int(rest[0]), int(rest[1]))
            dice = random.Random(rest[1])
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nETag: \"1\"\r\nConnection: close\r\n"
            if how == "chunked":
                self.wfile.write(head + b"Transfer-Encoding: chunked\r\n\r\n")
            else:
                self.wfile.write(head + b"Content-Length: %d\r\n\r\n" % len(body))
            if how in ("short", "dies"):
                body = body[:len(body) // 2]
            at = 0
            while at < len(body):
                piece = body[at:at + dice.choice([1, 100, 4096, 8000, 40000, 200000])]
                at += len(piece)
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if how == "chunked" else piece)
            if how == "chunked":
                self.wfile.write(b"0\r\n\r\n")
            if how == "dies":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Upstream.Handler)
        self.port = self.server_address[1]
        self.go = threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()


LOG = "log_format w '$uri|$status|$wattlock_encoding|$gzip_ratio|$wattlock_ratio|$wattlock_compress_time|$sent_http_content_encoding';"


@contextlib.contextmanager
def served(server="", http="", upstream=None, provider="", preload=None, **more):
    """An nginx with gzip, its plain port, and the upstream's paths under /up/ and (without buffers) /raw/. `provider`: its
    settings, or None for an nginx without it."""
    port = free_port()
    proxied = ""
    if upstream is not None:
        proxied = "".join(
            f"location {name} {{ proxy_pass http://127.0.0.1:{upstream.port}/; proxy_http_version 1.1; {extra} }}"
            for name, extra in [("/up/", ""), ("/raw/", "proxy_buffering off;"),
                                ("/sub/", "sub_filter ship boat; sub_filter_once off; sub_filter lock '';"),
                                ("/slow/", "limit_rate 300k;")])
    http += f"""
  {LOG}
  gzip on; gzip_min_length 0; gzip_types *; gzip_vary on; gzip_proxied any;
  server {{
    listen 127.0.0.1:{port}; root html; default_type text/html; access_log logs/w.log w;
    {proxied}
    {"".join(f'location /l{n}/ {{ gzip_comp_level {n}; alias html/; }}' for n in range(1, 10))}
    location /z/ {{ wattlock_zstd on; alias html/; }}
    location /off/ {{ wattlock_gzip off; alias html/; }}
    location /ssi/ {{ ssi on; ssi_types *; alias html/; }}
    {server}
  }}
"""
    nginx = survive.Nginx(http=http, provider=provider or "", **more)
    if provider is None:
        (nginx.folder / "openssl.cnf").write_text("")
    if preload is not None:
        nginx.preload(preload, "-D_GNU_SOURCE")
    nginx.plain = port
    with nginx:
        yield nginx


def log(nginx, path):
    """What the access log says of a path's last request."""
    wait_for(lambda: lines_of(nginx, path), f"{path} in the access log")
    return lines_of(nginx, path)[-1]


def lines_of(nginx, path):
    lines = (nginx.folder / "logs/w.log").read_text().splitlines()
    return [line.split("|") for line in lines if line.startswith(path + "|")]


def case_sizes():
    """Every size around a limit, every level, gzip and zstd, compressible and not."""
    with served() as nginx:
        for turn, size in enumerate(SIZES):
            (nginx.folder / f"html/f{size}").write_bytes(content(size, turn))
        connection = Connection(nginx.plain)
        for turn, size in enumerate(SIZES):
            want = content(size, turn)
            for level in range(1, 10):
                status, headers, body = connection.get(f"/l{level}/f{size}")
                assert status == 200 and headers["content-encoding"] == "gzip", (size, level, headers)
                assert headers["vary"] == "Accept-Encoding" and headers["etag"].startswith("W/"), headers
                assert ungzip(body) == want, (size, level)
                assert len(body) <= size + size // 1000 + 60, f"{size} grew to {len(body)}"
            status, headers, body = connection.get(f"/z/f{size}", "gzip, deflate, br, zstd")
            assert headers["content-encoding"] == "zstd" and unzstd(body) == want, (size, headers)
        _, status, coding, gzip_ratio, ratio, took, _ = log(nginx, f"/l1/f{1 << 20}")
        assert coding == "gzip" and gzip_ratio == ratio and float(ratio) >= 1 and float(took) > 0, (gzip_ratio, ratio)
        assert log(nginx, f"/z/f{1 << 20}")[2] == "zstd"


def case_codings():
    """Who gets zstd: a client that gives it at least gzip's weight, where it is on."""
    with served() as nginx:
        want = text(50000)
        (nginx.folder / "html/page").write_bytes(want)
        for accept, coding in [("gzip, zstd", "zstd"), ("gzip", "gzip"), ("zstd;q=0.5, gzip", "gzip"), ("gzip;q=0.5, zstd;q=0.5", "zstd"),
                               ("gzip, zstd;q=0", "gzip"), ("gzip;q=0.1,ZSTD;q=0.11", "zstd"), ("gzip, zstdx", "gzip"),
                               ("identity", None), ("zstd", None), ("gzip, zstd; q=0.001", "gzip")]:
            _, headers, body = Connection(nginx.plain).get("/z/page", accept)
            assert headers.get("content-encoding") == coding, (accept, headers)
            assert decoded(headers, body) == want, accept
        _, headers, body = Connection(nginx.plain).get("/l1/page", "gzip, zstd")
        assert headers["content-encoding"] == "gzip", "zstd is off there"
        # Off: nginx's own gzip, and its own ratio.
        _, headers, body = Connection(nginx.plain).get("/off/page")
        assert headers["content-encoding"] == "gzip" and ungzip(body) == want
        _, _, coding, gzip_ratio, ratio, _, _ = log(nginx, "/off/page")
        assert coding == "-" and ratio == "-" and float(gzip_ratio) > 1, (coding, gzip_ratio, ratio)
        # curl's own decoder, and HTTP/1.0, HEAD, ranges, 304.
        for option in ["--compressed", "--http1.0"]:
            got = subprocess.run(["curl", "-sS", option, f"http://127.0.0.1:{nginx.plain}/l6/page"], capture_output=True)
            assert got.stdout == want and got.returncode == 0, (option, got.stderr)
        connection = Connection(nginx.plain)
        status, headers = connection.ask("/l1/page", method="HEAD")
        assert status == 200 and headers.get("content-encoding") in ("gzip", None), headers
        status, headers, body = connection.get("/l1/page")
        assert ungzip(body) == want
        status, headers, body = connection.get("/l1/page", more="Range: bytes=10-19\r\n")
        assert status == 200 and ungzip(body) == want, "what is compressed has no ranges, as with nginx's gzip"
        _, headers, _ = connection.get("/l1/page")
        etag = headers["etag"]
        status, headers = connection.ask("/l1/page", more=f"If-None-Match: {etag}\r\n")
        assert status == 304 and "content-encoding" not in headers, (status, headers)


def case_upstream():
    """Chunked and sized, with and without buffers, rewritten on the way, slowly."""
    upstream = Upstream()
    with served(upstream=upstream) as nginx:
        dice = random.Random(3)
        # Slow ones take a second: of many responses they are few.
        ways = ["up", "raw", "sub"] * max(1, ARGS.count // 200) + ["slow"]
        for turn in range(ARGS.count):
            size = dice.choice(SIZES + [dice.randrange(400000) for _ in range(len(SIZES))])
            how, way = dice.choice(["chunked", "sized"]), dice.choice(ways)
            way = "up" if way == "slow" and size >= 300000 else way
            status, headers, body = Connection(nginx.plain).get(f"/{way}/{how}/{size}/{turn}")
            want = content(size, turn)
            if way == "sub":
                want = want.replace(b"ship", b"boat").replace(b"lock", b"")
            assert headers["content-encoding"] == "gzip", headers
            assert ungzip(body) == want, (way, how, size, turn)


def case_upstream_fails():
    """One that ends before its Content-Length, or is reset: what came decodes, and the end is missing."""
    upstream = Upstream()
    with served(upstream=upstream) as nginx:
        for turn in range(30):
            how, way = ["short", "dies"][turn % 2], ["up", "raw"][turn // 2 % 2]
            connection = Connection(nginx.plain)
            with contextlib.suppress(ConnectionError, ValueError):
                _, headers = connection.ask(f"/{way}/{how}/{[3000, 300000][turn % 3 == 0]}/{turn}")
                out = b""
                decoder = zlib.decompressobj(31)
                while (piece := connection.chunk()):
                    out += decoder.decompress(piece)
                raise AssertionError(f"{way} {how}: ended as if it were whole")
            connection.close()
            assert ungzip(Connection(nginx.plain).get("/up/sized/5000/1")[2]) == content(5000, 1)


def case_events():
    """Each event of a stream goes out when it comes, in one continuous gzip stream."""
    upstream = Upstream()
    with served(upstream=upstream) as nginx:
        five_events(nginx, upstream)


def five_events(nginx, upstream):
    connection = Connection(nginx.plain)
    _, headers = connection.ask("/raw/events")
    assert headers["content-encoding"] == "gzip"
    decoder, got = zlib.decompressobj(31), b""
    for number in range(5):
        want = b"data: %d\n\n" % number
        while not got.endswith(want):
            piece = connection.chunk()
            assert piece, "the stream ended"
            got += decoder.decompress(piece)
        upstream.go.set()
    while (piece := connection.chunk()):
        got += decoder.decompress(piece)
    assert decoder.eof and got == b"".join(b"data: %d\n\n" % number for number in range(5))


def case_events_are_no_work_for_a_card():
    """Each would be a chunk of its own, with a dictionary of all events before it."""
    card = "name card\nwindow 256 requests 67108864 bytes\npool compression 64 servers\ntable deflate 0:100000\n"
    upstream = Upstream()
    with served(upstream=upstream, provider=survive.with_card(card)) as nginx:
        (nginx.folder / "html/page.html").write_bytes(text(50_000, 1))
        wait_for(lambda: only_by_card(nginx, "/l1/page.html"), "the card to have all")
        before = bytes_of(nginx)
        five_events(nginx, upstream)
        assert bytes_of(nginx) == (before[0], before[1] + 45)


def case_parts():
    """Server-side includes: several sources, data-less buffers between them."""
    with served() as nginx:
        html = nginx.folder / "html"
        (html / "part").write_bytes(text(90000, 7))
        (html / "whole").write_bytes(b"<a>" + text(100000, 8) + b'<!--# include virtual="/ssi/part" -->' + text(10, 9)
                                     + b'<!--# include virtual="/ssi/part" --></a>')
        want = b"<a>" + text(100000, 8) + text(90000, 7) + text(10, 9) + text(90000, 7) + b"</a>"
        for _ in range(5):
            _, headers, body = Connection(nginx.plain).get("/ssi/whole")
            assert headers["content-encoding"] == "gzip" and ungzip(body) == want


def case_slow_clients():
    """Clients that read slowly, or go away, starve nobody; nothing is left over."""
    with served(main="", events="worker_connections 512;", http="wattlock_memory 3m;") as nginx:
        big = text(3 << 20, 5)
        (nginx.folder / "html/big.html").write_bytes(big)
        waiting = []
        for _ in range(30):
            connection = Connection(nginx.plain, 65536)
            waiting.append((connection, connection.ask("/l6/big.html")[1]))
        # The memory allows for six; the others are gzip's own, and each client is served.
        assert ungzip(Connection(nginx.plain).get("/l1/big.html")[2]) == big
        for connection, headers in waiting[::2]:
            connection.close()
        for connection, headers in waiting[1::2]:
            assert ungzip(connection.body(headers)) == big
        wait_for(lambda: ungzip(Connection(nginx.plain).get("/l1/big.html")[2]) == big, "room again")
        wait_for(lambda: log(nginx, "/l1/big.html")[2] == "gzip", "the filter's place again")


def curl(nginx, *arguments, version="--http2"):
    """What curl's own decoder makes of responses over TLS."""
    return subprocess.run(["curl", "-sSk", version, "--compressed", "-m", "60", *arguments], capture_output=True)


def tls(nginx_port, upstream=None):
    """A server with TLS and HTTP/2, with the paths of the plain one. Its certificate is the first server's."""
    up = "" if upstream is None else f"""
      location /up/ {{ proxy_pass http://127.0.0.1:{upstream.port}/; proxy_http_version 1.1; }}
      location /raw/ {{ proxy_pass http://127.0.0.1:{upstream.port}/; proxy_http_version 1.1; proxy_buffering off; }}
      location /slow/ {{ proxy_pass http://127.0.0.1:{upstream.port}/; limit_rate 300k; }}"""
    return f"""server {{ listen 127.0.0.1:{nginx_port} ssl http2; root html; default_type text/html;
      ssl_certificate cert.pem; ssl_certificate_key key.pem; gzip_comp_level 6; {up}
      location /l9/ {{ gzip_comp_level 9; alias html/; }} location /l1/ {{ gzip_comp_level 1; alias html/; }} }}"""


def case_http2_and_tls():
    """Streams of one connection beside each other, with their own flow control; and HTTP/1.1 over TLS."""
    upstream, port = Upstream(), free_port()
    with served(upstream=upstream, http=tls(port, upstream)) as nginx:
        sizes = [0, 1, 5000, 131073, 400000]
        for size in sizes:
            (nginx.folder / f"html/f{size}").write_bytes(content(size, 0))
        paths = [f"l{level}/f{size}" for level in (1, 9) for size in sizes]
        paths += [f"{way}/{how}/{size}/0" for way in ("up", "raw") for how in ("chunked", "sized") for size in sizes]
        paths += ["slow/sized/300000/0"]
        out = nginx.folder / "out"
        out.mkdir()
        for version, parallel in [("--http2", ["-Z"]), ("--http1.1", [])]:
            asked = []
            for at, path in enumerate(paths):
                asked += ["-o", str(out / str(at)), f"https://127.0.0.1:{port}/{path}"]
            got = curl(nginx, *parallel, "-w", "%{http_version} %{http_code}\n", *asked, version=version)
            want = "2 200" if version == "--http2" else "1.1 200"
            assert got.returncode == 0 and got.stdout.decode().split("\n")[:-1] == [want] * len(paths), got
            for at, path in enumerate(paths):
                size = int(re.search(r"[f/](\d+)", path[3:])[1])
                assert (out / str(at)).read_bytes() == content(size, 0), (version, path)
                (out / str(at)).unlink()


def case_clients_leave_in_mid_work():
    """Clients that go while their response is compressed, on every way: the worker lives, and nothing is left of them."""
    clients_leave("wattlock_memory 3m; wattlock_set cores 0;")


def case_clients_leave_other_cores():
    """The same where other cores compress: a response of six takes its own memory and that of its chunks."""
    clients_leave("wattlock_memory 12m;", preload=IDLE)


def case_clients_leave_a_card():
    """The same while a card has their chunks."""
    card = "name card\nwindow 64 requests 16777216 bytes\npool compression 4 servers\ntable deflate 0:2000000\n"
    clients_leave("wattlock_memory 12m;", provider=survive.with_card(card, "qweb"))


def clients_leave(settings, **more):
    upstream, port = Upstream(), free_port()
    with served(upstream=upstream, http=settings + tls(port, upstream), **more) as nginx:
        big = text(3 << 20, 5)
        (nginx.folder / "html/big.html").write_bytes(big)
        (nginx.folder / "html/whole").write_bytes(b'<!--# include virtual="/l9/big.html" -->' * 3)
        worker = subprocess.run(["pgrep", "-P", str(nginx.pid())], capture_output=True, text=True).stdout
        dice = random.Random(9)
        for _ in range(ARGS.count // 2):
            path = dice.choice(["/l9/big.html", "/l1/big.html", "/up/sized/3000000/0", "/raw/chunked/3000000/0",
                                "/ssi/whole", "/slow/sized/3000000/0"])
            connection = Connection(nginx.plain, 65536)
            connection.ask(path)
            if dice.random() < 0.8:
                connection.file.read(dice.choice([1, 1000, 20000]))
            if dice.random() < 0.5:
                connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            connection.file.close()
            connection.close()
        for at in range(ARGS.count // 20):
            curl(nginx, "-m", f"0.0{5 + at % 5}", "-o", "/dev/null", f"https://127.0.0.1:{port}/l9/big.html")
        # All memory is there again: it is enough for six.
        def all_six():
            before = len(lines_of(nginx, "/l6/big.html"))
            six = [Connection(nginx.plain, 65536) for _ in range(6)]
            for connection in six:
                connection.ask("/l6/big.html")
            for connection in six:
                connection.close()
            wait_for(lambda: len(lines_of(nginx, "/l6/big.html")) == before + 6, "six lines")
            return [line[2] for line in lines_of(nginx, "/l6/big.html")[before:]] == ["gzip"] * 6
        wait_for(all_six, "room for six")
        assert subprocess.run(["pgrep", "-P", str(nginx.pid())], capture_output=True, text=True).stdout == worker
        assert not re.search(r"\[(alert|emerg|crit)\]", nginx.log()), nginx.log()


IDLE = r"""
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>
/* A machine whose cores are idle whenever somebody looks. */
static int fake(void) {
    static long ticks = 1000;
    int fd = memfd_create("stat", 0);
    ticks += 1000;
    dprintf(fd, "cpu  10 0 10 %ld 0 0 0 0 0 0\n", ticks);
    lseek(fd, 0, SEEK_SET);
    return fd;
}
#define OPEN(name) int name(const char *path, int flags, ...) { \
    va_list list; va_start(list, flags); mode_t mode = va_arg(list, mode_t); va_end(list); \
    if (strcmp(path, "/proc/stat") == 0) return fake(); \
    return ((int (*)(const char *, int, ...)) dlsym(RTLD_NEXT, #name))(path, flags, mode); }
OPEN(open)
OPEN(open64)
"""


def requests_of(nginx, engine, kind):
    cells = nginx.status()["runtime"]["cells"]
    return sum(one["requests"] for one in cells if one["engine"] == engine and one["kind"] == kind)


def case_other_cores():
    """Large responses are cut and joined to one member, whoever produces them and however they are taken."""
    upstream = Upstream()
    with served(upstream=upstream, preload=IDLE, http="wattlock_chunk_size 16k; wattlock_stream_size 64k;") as nginx:
        big = text(5 << 20, 5)
        (nginx.folder / "html/big.html").write_bytes(big)
        (nginx.folder / "html/whole").write_bytes(b"<a>" + b'<!--# include virtual="/ssi/big.html" -->' * 2 + b"</a>")

        def spread():
            before = requests_of(nginx, "instruction", "deflate")
            assert ungzip(Connection(nginx.plain).get("/l9/big.html")[2]) == big
            # One for the response, and one for each of its chunks.
            return requests_of(nginx, "instruction", "deflate") - before > 100
        wait_for(spread, "a response on other cores")
        for level in range(1, 10):
            assert ungzip(Connection(nginx.plain).get(f"/l{level}/big.html")[2]) == big, level
        dice = random.Random(3)
        for turn in range(ARGS.count // 4):
            way, how = dice.choice(["up", "raw"]), dice.choice(["chunked", "sized"])
            size = dice.choice([0, 1, 16384, 65536, 1 << 20, 3000000]) + dice.choice([-1, 0, 1])
            size = max(size, 0)
            body = Connection(nginx.plain).get(f"/{way}/{how}/{size}/{turn}")[2]
            assert ungzip(body) == content(size, turn), (way, how, size, turn)
        assert ungzip(Connection(nginx.plain).get("/ssi/whole")[2]) == b"<a>" + big + big + b"</a>"
        # Several at once, of which some leave and some are slow.
        some = [Connection(nginx.plain, 65536) for _ in range(12)]
        asked = [connection.ask(f"/l{1 + at % 9}/big.html")[1] for at, connection in enumerate(some)]
        time.sleep(0.05)
        for connection in some[::3]:
            connection.close()
        for at, connection in enumerate(some):
            if at % 3:
                assert ungzip(connection.body(asked[at])) == big
        # A reload lets what is under way come to its end, and the old worker goes.
        connection = Connection(nginx.plain, 65536)
        headers = connection.ask("/l9/big.html")[1]
        worker = subprocess.run(["pgrep", "-P", str(nginx.pid())], capture_output=True, text=True).stdout.split()[0]
        os.kill(nginx.pid(), signal.SIGHUP)
        assert ungzip(connection.body(headers)) == big
        connection.close()
        wait_for(lambda: not os.path.exists(f"/proc/{worker}"), "the old worker to go")
        assert not re.search(r"\[(alert|emerg|crit)\]", nginx.log()), nginx.log()
    with served(preload=IDLE, http="wattlock_set cores 0;") as nginx:
        (nginx.folder / "html/big.html").write_bytes(big)
        for _ in range(4):
            time.sleep(0.15)
            assert ungzip(Connection(nginx.plain).get("/l6/big.html")[2]) == big
        assert requests_of(nginx, "instruction", "deflate") == 4, "with no cores every response is one stream"


def case_stalled_client():
    """`send_timeout` ends a client that takes nothing, while other cores go on waking the loop for others."""
    with served(preload=IDLE, http="send_timeout 1s; wattlock_chunk_size 16k; wattlock_stream_size 64k;") as nginx:
        (nginx.folder / "html/huge.html").write_bytes(text(1 << 20, 5) * 24)
        big = text(2 << 20, 6)
        (nginx.folder / "html/big.html").write_bytes(big)
        stalled = Connection(nginx.plain, 65536)
        stalled.ask("/l9/huge.html")
        begun = time.monotonic()
        while not lines_of(nginx, "/l9/huge.html"):
            assert time.monotonic() < begun + ARGS.patience, "the stalled client is still there"
            assert ungzip(Connection(nginx.plain).get("/l9/big.html")[2]) == big
        stalled.close()


def case_faulty_cards():
    """What a card makes wrong, late or not at all is found out and done again, unseen."""
    card = "name card\nwindow 64 requests 16777216 bytes\npool compression 4 servers\ntable deflate,zstd 0:20000\n"
    for fault in ["", "fault error every 3\n", "fault silence requests 5 6\n", "fault wrong-result every 2\n",
                  "fault lost after 300000000 until 9000000000\n"]:
        with served(provider=survive.with_card(card + fault, "qweb")) as nginx:
            big = text(2 << 20, 5)
            (nginx.folder / "html/big.html").write_bytes(big)
            for level in (6, 1, 9):
                assert ungzip(Connection(nginx.plain).get(f"/l{level}/big.html")[2]) == big, (fault, level)
            assert fault or requests_of(nginx, "emulated", "deflate") > 0, nginx.status()["runtime"]["engines"]


def bytes_of(nginx, kind="deflate"):
    """By the card, and by others."""
    cells = [one for one in nginx.status()["runtime"]["cells"] if one["kind"] == kind]
    card = sum(one["bytes"] for one in cells if one["engine"] == "emulated")
    return card, sum(one["bytes"] for one in cells) - card


def only_by_card(nginx, path):
    """Whether a dozen responses are: then each of the provider's threads has had the card's known answers."""
    before = bytes_of(nginx)[1]
    for _ in range(12):
        Connection(nginx.plain).get(path)
    return bytes_of(nginx)[1] == before


def case_a_card_gets_responses_from_the_switch_on():
    """At every level all content of 256 bytes and more is the card's, in chunks of which none waits for another's answer,
    and the loop serves others meanwhile."""
    card = "name card\nwindow 256 requests 67108864 bytes\npool compression 64 servers\ntable deflate 0:LATENCY\n"
    with served(provider=survive.with_card(card.replace("LATENCY", "1000000"), "qweb")) as nginx:
        pages = {size: text(size, size) for size in (200, 5_000, 50_000, 145_000, 1_100_000)}
        for size, page in pages.items():
            (nginx.folder / f"html/{size}.html").write_bytes(page)

        def get(size, level):
            assert ungzip(Connection(nginx.plain).get(f"/l{level}/{size}.html")[2]) == pages[size], (size, level)

        wait_for(lambda: only_by_card(nginx, "/l1/50000.html"), "the card to have all")
        for level in (1, 2, 6, 9):
            before = bytes_of(nginx)
            for size in (5_000, 50_000, 145_000, 1_100_000):
                get(size, level)
            by_card, by_cpu = (after - before for after, before in zip(bytes_of(nginx), before))
            assert by_card + by_cpu == 1_300_000 and by_card >= 0.95 * 1_300_000, (level, by_card, by_cpu)
        before = bytes_of(nginx)
        get(200, 1)
        assert bytes_of(nginx) == (before[0], before[1] + 200), "below the switch"
    slow = survive.with_card(card.replace("LATENCY", "150000000"), "qweb") + "give-up-ms = 5000\n"
    with served(provider=slow) as nginx:
        (nginx.folder / "html/page.html").write_bytes(pages[145_000])
        wait_for(lambda: only_by_card(nginx, "/l1/page.html"), "the card to have all")
        with survive.Asking(nginx) as asking:
            def on_card():
                engines = asking.status()["runtime"]["engines"]
                return sum(one["in_flight"] for one in engines if one["engine"] == "emulated")

            def three_at_once():
                connection, most = Connection(nginx.plain), 0
                connection.socket.sendall(b"GET /l1/page.html HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n")
                while not select.select([connection.socket], [], [], 0)[0]:
                    most = max(most, on_card())
                connection.close()
                return most == 3

            wait_for(three_at_once, "three chunks on the card while others are served")


def case_reload_and_kill():
    """A reload under load loses nothing; a killed worker is replaced."""
    with served(workers=2) as nginx:
        big = text(1 << 20, 5)
        (nginx.folder / "html/big.html").write_bytes(big)
        stop, wrong, done = threading.Event(), [], []

        def client():
            while not stop.is_set():
                try:
                    _, headers, body = Connection(nginx.plain).get("/l6/big.html")
                    assert ungzip(body) == big
                    done.append(1)
                except Exception as error:
                    wrong.append(error)

        threads = [threading.Thread(target=client) for _ in range(6)]
        [thread.start() for thread in threads]
        for _ in range(3):
            before = len(done)
            os.kill(nginx.pid(), signal.SIGHUP)
            wait_for(lambda: len(done) > before + 12, "responses behind the reload")
        stop.set()
        [thread.join() for thread in threads]
        assert not wrong, wrong[:3]
        children = subprocess.run(["pgrep", "-P", str(nginx.pid())], capture_output=True, text=True).stdout.split()
        os.kill(int(children[0]), signal.SIGKILL)
        wait_for(lambda: ungzip(Connection(nginx.plain).get("/l1/big.html")[2]) == big, "a new worker")


def case_small_between_large():
    """While large responses are compressed, a small one comes in turn: the loop goes round between slices."""
    with served() as nginx:
        big = text(8 << 20, 5)
        (nginx.folder / "html/big.html").write_bytes(big)
        large = [Connection(nginx.plain) for _ in range(4)]
        small = Connection(nginx.plain)
        small.get("/")
        headers = [connection.ask("/l9/big.html")[1] for connection in large]
        bodies = [None] * len(large)

        def read(at):
            bodies[at] = large[at].body(headers[at])

        threads = [threading.Thread(target=read, args=(at,)) for at in range(len(large))]
        [thread.start() for thread in threads]
        served_meanwhile = 0
        while any(thread.is_alive() for thread in threads):
            if served_meanwhile % 500 == 499:
                small = Connection(nginx.plain)  # keepalive_requests
            assert small.get("/index.html", "identity")[2] == b"ok\n"
            served_meanwhile += 1
        assert all(ungzip(body) == big for body in bodies)
        # Eight MiB at level 9 are half a second and more; one of them at a time would let a handful through.
        assert served_meanwhile > 100, served_meanwhile


def case_without_provider():
    """nginx's own gzip serves, and says so once."""
    with served(provider=None) as nginx:
        (nginx.folder / "html/page").write_bytes(text(40000))
        _, headers, body = Connection(nginx.plain).get("/l6/page")
        assert headers["content-encoding"] == "gzip" and ungzip(body) == text(40000)
        assert log(nginx, "/l6/page")[2] == "-"
        assert "nginx's own gzip compresses" in nginx.log()


def case_memory_stays_flat():
    """A worker that has served many responses, on other cores too, is no larger than one that has served some."""
    with served(preload=IDLE) as nginx:
        (nginx.folder / "html/page").write_bytes(text(100000))

        def of_worker(name):
            child = subprocess.run(["pgrep", "-P", str(nginx.pid())], capture_output=True, text=True).stdout.split()[0]
            return int(re.search(rf"{name}:\s+(\d+)", open(f"/proc/{child}/status").read())[1])

        def many(count):
            connection = Connection(nginx.plain)
            for turn in range(count):
                if turn % 200 == 0:
                    connection.close()
                    connection = Connection(nginx.plain)
                assert ungzip(connection.get(f"/l{1 + turn % 9}/page")[2]) == text_of_page
        text_of_page = text(100000)
        many(200)
        # The pool's threads have 6 MB of their own, and begin with the first response that takes long.
        wait_for(lambda: many(20) or of_worker("Threads") > 1 or os.cpu_count() < 2, "threads that compress")
        many(200)
        before = of_worker("VmRSS")
        many(5 * ARGS.count)
        assert of_worker("VmRSS") < before + 2048, (before, of_worker("VmRSS"))


def main():
    global ARGS
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--nginx", default="/usr/sbin/nginx")
    parser.add_argument("--module")
    parser.add_argument("--provider")
    parser.add_argument("--count", type=int, default=200)
    ARGS = parser.parse_args()
    ARGS.under, ARGS.single, ARGS.patience = "", False, 20
    survive.ARGS = ARGS
    cases = {name[5:]: case for name, case in globals().items() if name.startswith("case_")}
    if ARGS.name == "list":
        print("\n".join(cases))
        return
    for name in cases if ARGS.name == "all" else [ARGS.name]:
        cases[name]()
        print(f"{name}: ok", flush=True)


if __name__ == "__main__":
    main()
