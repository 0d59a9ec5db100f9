"""A server on Python's ssl, or without TLS for a proxy to stand before. Answers every request with "whole".

server.py PORT [--cert FILE] [--clients CA]

A request for /slow takes three seconds.
"""

import argparse
import http.server
import socketserver
import ssl
import time

options = argparse.ArgumentParser()
options.add_argument("port", type=int)
options.add_argument("--cert")
options.add_argument("--clients", help="certificates that clients must have")
options = options.parse_args()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        with open("/proc/self/maps") as maps:
            loaded = "libwattlock_provider" in maps.read()
        if self.path == "/slow":
            time.sleep(3)
        body = f"loaded {loaded}\r\nwhole\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *arguments):
        pass


server = Server(("127.0.0.1", options.port), Handler)
if options.cert:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(options.cert)
    if options.clients:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(options.clients)
    server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
