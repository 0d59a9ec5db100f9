"""Runs a server and then a client in a network namespace of their own, where loopback is all there is.

alone.py PORT SERVER ... -- CLIENT ...

For servers that cannot be told to listen on loopback only. Where namespaces are not allowed both run without.
Ends with the client's exit status; the server is killed.
"""

import ctypes
import fcntl
import socket
import struct
import subprocess
import sys
import time

USER_AND_NETWORK = 0x10000000 | 0x40000000  # a user namespace and a network namespace
SIOCSIFFLAGS, UP_AND_RUNNING = 0x8914, 0x41

if ctypes.CDLL(None, use_errno=True).unshare(USER_AND_NETWORK) == 0:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", UP_AND_RUNNING))

port, rest = int(sys.argv[1]), sys.argv[2:]
at = rest.index("--")
server = subprocess.Popen(rest[:at], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
try:
    for _ in range(200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.05)
    sys.exit(subprocess.run(rest[at + 1 :], timeout=30).returncode)
finally:
    server.kill()
    server.wait()
