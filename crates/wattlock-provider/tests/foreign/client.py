"""A client on Python's ssl: so many full handshakes with so many threads, or one that resumes. Prints what it saw.

client.py PORT --ca FILE [--version 1.2|1.3] [--handshakes N] [--threads N] [--resume] [--cert FILE]
          [--path PATH | --say WORD]
"""

import argparse
import json
import socket
import ssl
import threading

options = argparse.ArgumentParser()
options.add_argument("port", type=int)
options.add_argument("--ca", required=True)
options.add_argument("--version", choices=["1.2", "1.3"], default="1.3")
options.add_argument("--handshakes", type=int, default=1)
options.add_argument("--threads", type=int, default=1)
options.add_argument("--resume", action="store_true")
options.add_argument("--cert")
options.add_argument("--path", default="/")
options.add_argument("--say", help="says this and leaves, where the server answers nothing")
options = options.parse_args()

context = ssl.create_default_context(cafile=options.ca)
version = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}[options.version]
context.minimum_version = context.maximum_version = version
if options.cert:
    context.load_cert_chain(options.cert)

lock = threading.Lock()
seen, bad = [], []


def exchange(session=None):
    """One connection, one request. Returns the session to resume and what was seen."""
    with socket.create_connection(("127.0.0.1", options.port), timeout=20) as plain:
        with context.wrap_socket(plain, server_hostname="localhost", session=session) as connection:
            if options.say:
                connection.sendall(f"{options.say}\n".encode())
                state = [connection.version(), connection.cipher()[0], connection.session_reused]
                connection.unwrap()
                return None, state
            request = f"GET {options.path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            connection.sendall(request.encode())
            answer = b""
            # Some servers close without saying so in TLS; that the answer is whole is seen from its end.
            while not answer.endswith(b"\r\nwhole\n"):
                piece = connection.recv(65536)
                if not piece:
                    break
                answer += piece
            if not answer.startswith((b"HTTP/1.0 200", b"HTTP/1.1 200")) or not answer.endswith(b"whole\n"):
                raise ValueError(f"answered {answer[:300]!r}")
            state = [connection.version(), connection.cipher()[0], connection.session_reused]
            return connection.session, state


def work(count):
    for _ in range(count):
        try:
            _, state = exchange()
            with lock:
                seen.append(state)
        except Exception as error:
            with lock:
                bad.append(repr(error))


if options.resume:
    session, first = exchange()
    _, second = exchange(session)
    seen += [first, second]
else:
    share = options.handshakes // options.threads
    threads = [threading.Thread(target=work, args=(share,)) for _ in range(options.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

with open("/proc/self/maps") as maps:
    loaded = "libwattlock_provider" in maps.read()
print(json.dumps({"good": len(seen), "bad": bad, "seen": seen[:2], "loaded": loaded}))
