#!/usr/bin/env python3
"""What `wattlock nginx enable`, `disable` and `guard` do to this machine's nginx, on a copy of its /etc.

    enable.py NAME --program WATTLOCK --module M.so --provider P.so

Each scenario runs as root in a mount and process namespace of its own, in which /etc is a copy and the program, module
and provider lie where `make install` puts them. systemd is not process 1 there: `unit.py` executes the unit's lines
instead. Scenarios are the functions whose names begin with `case_`; `enable.py list` names them. Standard library only.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
WATTLOCK = "/usr/local/bin/wattlock"
MODULE = pathlib.Path("/usr/local/lib/wattlock/ngx_http_wattlock_module.so")
PROVIDER = pathlib.Path("/usr/local/lib/wattlock/libwattlock_provider.so")
NGINX = pathlib.Path("/etc/nginx/nginx.conf")
OWN = pathlib.Path("/etc/wattlock/nginx-openssl.cnf")
DROPIN = pathlib.Path("/etc/systemd/system/nginx.service.d/wattlock.conf")
DEFAULTS = pathlib.Path("/etc/default/nginx")
SYSTEM = pathlib.Path("/etc/ssl/openssl.cnf")
SITE = pathlib.Path("/etc/nginx/conf.d/site.conf")
MARK = "# by `wattlock nginx enable`"
# What is there on every machine, certbot's and a package's scripts among it: no OPENSSL_CONF.
CLEAN = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}

UNIT = """[Unit]
Description=nginx
[Service]
Type=forking
PIDFile=/run/nginx.pid
ExecStartPre=/usr/sbin/nginx -t -q -g 'daemon on; master_process on;'
ExecStart=/usr/sbin/nginx -g 'daemon on; master_process on;'
"""
CONF = """user www-data;
worker_processes 1;
pid /run/nginx.pid;
error_log /var/log/nginx/error.log notice;
include /etc/nginx/modules-enabled/*.conf;

events {
	worker_connections 768;
}

http {
	access_log off;
	ssl_protocols TLSv1.2 TLSv1.3;
	include /etc/nginx/conf.d/*.conf;
}
"""


class NotRun(Exception):
    """What a scenario needs is not here."""


def run(*words, env=CLEAN, **more):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, env=env, timeout=300, **more)
    assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def refused(*words, env=CLEAN):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode != 0, f"{words}: it went well\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def enable(*more):
    return run(WATTLOCK, "nginx", "enable", "--yes", *more)


def disable(*more):
    return run(WATTLOCK, "nginx", "disable", "--yes", *more)


def guard():
    """What the guard says: nothing, or one line."""
    said = run(WATTLOCK, "nginx", "guard", "--nginx", "/usr/sbin/nginx", "--config", NGINX)
    assert said.count("\n") <= 1, said
    return said


def snapshot():
    """Everything of /etc: kind, permissions, owner and contents."""
    found = {}
    for folder, folders, files in os.walk("/etc"):
        for name in folders + files:
            path = pathlib.Path(folder, name)
            about = path.lstat()
            what = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
            found[str(path)] = (about.st_mode, about.st_uid, about.st_gid, what)
    return found


def same(before, after):
    different = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    assert not different, {name: (before.get(name), after.get(name)) for name in different}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


PORT = free_port()


def site(more=""):
    """A site with TLS; its certificate lies outside of /etc."""
    SITE.write_text(f"server {{\n    listen 127.0.0.1:{PORT} ssl;\n    ssl_certificate /run/site.pem;\n"
                    f"    ssl_certificate_key /run/site.key;\n    location / {{ return 200 \"hello\\n\"; }}\n{more}}}\n")


# An access list (acl(5)) as the kernel has it: the owner reads and writes, user 33 reads.
ACL = struct.pack("<I" + "HHI" * 5, 2, 1, 6, NONE := 2**32 - 1, 2, 4, 33, 4, 4, NONE, 16, 4, NONE, 32, 0, NONE)
STATUS = "    location = /wattlock_status { wattlock_status; }\n"


def fetch(path="/"):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    deadline = time.monotonic() + 20
    while True:
        try:
            with socket.create_connection(("127.0.0.1", PORT), timeout=20) as plain, context.wrap_socket(plain) as tls:
                tls.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
                head, _, body = b"".join(iter(lambda: tls.recv(65536), b"")).decode().partition("\r\n\r\n")
                return int(head.split()[1]), body
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def serves():
    assert fetch() == (200, "hello\n")


def active():
    status = json.loads(fetch("/wattlock_status")[1])
    return status["active"], status["why"]


def until(true, what):
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline, f"not within 30 s: {what}"
        time.sleep(0.05)


def pid():
    return int(pathlib.Path("/run/nginx.pid").read_text())


@contextlib.contextmanager
def running(*command):
    """An nginx, started by this command; as its unit says without one. Yields what was said."""
    said = run(*(command or (sys.executable, HERE / "unit.py", "nginx")))
    try:
        until(lambda: pathlib.Path("/run/nginx.pid").exists(), "nginx is up")
        yield said
    finally:
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            os.kill(pid(), signal.SIGTERM)
        until(lambda: not pathlib.Path("/run/nginx.pid").exists(), "nginx has ended")


def hybrid_is_offered():
    """Whether a client that knows the hybrid alone has a handshake; it has it from the file that nginx has."""
    return group("X25519MLKEM768")


def aes_256():
    """The exit status of a client that knows no other cipher."""
    words = ["openssl", "s_client", "-connect", f"127.0.0.1:{PORT}", "-tls1_3", "-ciphersuites",
             "TLS_AES_256_GCM_SHA384", "-brief"]
    environment = {**CLEAN, "OPENSSL_CONF": "/dev/null"}
    return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, env=environment, timeout=60).returncode


def openssl_has_the_hybrid():
    return "X25519MLKEM768" in run("openssl", "list", "-kem-algorithms", env={**CLEAN, "OPENSSL_CONF": "/dev/null"})


def mapped(process):
    return pathlib.Path(f"/proc/{process}/maps").read_text()


def nothing_of_ours():
    for path in (OWN, DROPIN):
        assert not path.exists(), path
    assert MARK not in NGINX.read_text() and not list(NGINX.parent.glob("*.before-wattlock*"))


# --- enable and disable ---------------------------------------------------------------------------------------------


def case_disable_gives_back_every_byte():
    before = snapshot()
    shown = run(WATTLOCK, "nginx", "enable", "--dry-run")
    for path in (OWN, DROPIN, NGINX):
        assert f"+++ {path}\n" in shown, shown
    same(before, snapshot())
    assert "nobody answered" in refused("setsid", WATTLOCK, "nginx", "enable")
    same(before, snapshot())
    for options in ([], ["--hybrid"], ["--all-programs"]):
        said = enable(*options) if options != ["--all-programs"] else run(WATTLOCK, "nginx", "enable", "-y", *options)
        assert MARK in NGINX.read_text() and DROPIN.exists(), said
        assert OWN.exists() == (options != ["--all-programs"])
        assert "nothing to change" in run(WATTLOCK, "nginx", "enable", "--yes", *options)
        run("nginx", "-t", "-q")
        assert SYSTEM.read_bytes() == before[str(SYSTEM)][3]
        assert "wattlock" not in run("openssl", "list", "-providers"), "another program has it"
        disable()
        same(before, snapshot())
    # From one way to the other, and back.
    enable()
    enable("--all-programs")
    assert not OWN.exists() and "OPENSSL_CONF" not in DROPIN.read_text() and "nginx guard" in DROPIN.read_text()
    enable("--hybrid")
    enable()
    assert "wattlock_hybrid on;" in NGINX.read_text(), "a later call keeps it"
    disable()
    same(before, snapshot())


def case_files_that_were_there_keep_what_they_had():
    for text in (None, "", "X=1", "X=1\n"):
        if text is None:
            DEFAULTS.unlink(missing_ok=True)
        else:
            DEFAULTS.write_text(text)
        (DROPIN.parent / "other.conf").parent.mkdir(exist_ok=True)
        (DROPIN.parent / "other.conf").write_text("[Service]\nLimitNOFILE=4096\n")
        before = snapshot()
        enable()
        assert "export OPENSSL_CONF=" in DEFAULTS.read_text()
        disable()
        same(before, snapshot())


def case_lines_by_hand_are_named_and_left():
    enable()
    OWN.write_text(OWN.read_text() + "mine = 1\n")
    DROPIN.write_text(DROPIN.read_text() + "# mine\n")
    said = disable()
    assert f"{OWN}: lines written by hand" in said and f"{DROPIN}: lines written by hand" in said, said
    assert "mine = 1\n" in OWN.read_text() and DROPIN.read_text() == "# mine\n"
    assert "wattlock_sect" not in OWN.read_text()
    run("nginx", "-t", "-q")


def case_settings_of_its_file_stay_and_others_are_refused():
    enable()
    run(WATTLOCK, "openssl", "enable", "--yes", "--config", OWN, "--set", "objective=energy")
    assert "wattlock_alone" in OWN.read_text() and ".include /etc/ssl/openssl.cnf" in OWN.read_text()
    assert "nothing to change" in enable()
    assert "objective = energy" in OWN.read_text()
    run("nginx", "-t", "-q")
    disable()
    nothing_of_ours()
    # A person's own OPENSSL_CONF is not pushed aside.
    for path, text in ((DROPIN.parent / "a.conf", "[Service]\nEnvironment=OPENSSL_CONF=/x\n"),
                       (DEFAULTS, "export OPENSSL_CONF=/x\n")):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        before = snapshot()
        assert str(path) in refused(WATTLOCK, "nginx", "enable", "--yes")
        same(before, snapshot())
        path.unlink()
    # And so is Wattlock for every program, which nginx then has already.
    run(WATTLOCK, "openssl", "enable", "--yes")
    assert "for every program" in enable() and not OWN.exists()
    disable()
    run(WATTLOCK, "openssl", "disable", "--yes")
    nothing_of_ours()


def case_nothing_is_written_where_others_may_write():
    folder = OWN.parent
    folder.mkdir()
    for change in (lambda: folder.chmod(0o777), lambda: os.chown(folder, 1000, 0)):
        change()
        before = snapshot()
        assert "root would trust it" in refused(WATTLOCK, "nginx", "enable", "--yes")
        same(before, snapshot())
        os.chown(folder, 0, 0)
        folder.chmod(0o755)
    target = pathlib.Path("/etc/target")
    OWN.symlink_to(target)
    assert "not a file of its own" in refused(WATTLOCK, "nginx", "enable", "--yes")
    assert not target.exists() and MARK not in NGINX.read_text()
    OWN.unlink()
    # A program that others can change is not named to be run by root.
    os.chown("/usr/local/bin", 1000, 0)
    said = enable()
    assert "no guard before a start" in said and "guard" not in DROPIN.read_text(), said
    disable()


def case_an_enable_that_is_killed_leaves_what_works():
    before = snapshot()
    for number in range(12):
        child = subprocess.Popen([WATTLOCK, "nginx", "enable", "--yes"], env=CLEAN,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(0.01 * 1.7 ** number)
        child.kill()
        child.wait()
        run("nginx", "-t", "-q")
        with running():
            serves()
        for left in pathlib.Path("/etc").rglob(".wattlock-*"):
            left.unlink()
        disable()
        same(before, snapshot())


def case_an_nginx_that_was_broken_before_is_said_and_left():
    bad = pathlib.Path("/etc/nginx/conf.d/bad.conf")
    bad.write_text("no_such_directive on;\n")
    before = snapshot()
    said = refused(WATTLOCK, "nginx", "enable", "--yes")
    assert "no_such_directive" in said and "without Wattlock" in said, said
    same(before, snapshot())
    bad.unlink()
    before = snapshot()
    enable()
    bad.write_text("no_such_directive on;\n")
    assert "no_such_directive" in guard() and MARK in NGINX.read_text()
    said = disable()
    assert "refuses it without" in said, said
    bad.unlink()
    same(before, snapshot())


def case_a_module_that_a_package_loads_is_not_loaded_again():
    link = pathlib.Path("/etc/nginx/modules-enabled/50-mod-http-wattlock.conf")
    target = pathlib.Path("/run/mod-http-wattlock.conf")
    target.write_text(f"load_module {MODULE};\n")
    link.symlink_to(target)
    before = snapshot()
    enable("--hybrid")
    assert "load_module" not in NGINX.read_text()
    site(STATUS)
    with running():
        assert active() == (True, "")
    site()
    disable()
    same(before, snapshot())


def case_the_owner_replaces_openssl_cnf_meanwhile():
    before = snapshot()
    site(STATUS)
    enable("--hybrid")
    theirs = "openssl_conf = a\n[a]\nproviders = b\nssl_conf = c\n[b]\ndefault = d\nlegacy = d\n[d]\nactivate = 1\n"
    theirs += "[c]\nsystem_default = e\n[e]\nCipherString = DEFAULT@SECLEVEL=1\n"
    SYSTEM.write_text(theirs)
    run("nginx", "-t", "-q")
    assert "follows it" in guard() and guard() == ""
    with running():
        assert active() == (True, "") and hybrid_is_offered()
    # What it says now is put together anew.
    enable()
    with running():
        assert active() == (True, "")
    # A file that cannot be understood keeps nobody from leaving.
    SYSTEM.write_text("[a\n")
    site()
    disable()
    assert SYSTEM.read_text() == "[a\n"
    SYSTEM.write_bytes(before[str(SYSTEM)][3])
    same(before, snapshot())


# --- what starts, and with what -------------------------------------------------------------------------------------


def case_every_start_has_the_provider_and_the_hybrid_without_openssl_conf():
    site(STATUS)
    refused("nginx", "-t", "-q")
    site()
    enable("--hybrid")
    site(STATUS)
    text = DROPIN.read_text()
    assert "Environment=OPENSSL_CONF=/etc/wattlock/nginx-openssl.cnf\n" in text, text
    assert "ExecCondition=-+/usr/local/bin/wattlock nginx guard" in text and "ExecStartPre" not in text, text
    assert "wattlock: " not in run("nginx", "-t"), "what a terminal, certbot and packages do"
    on = NGINX.read_text()
    ways = {"unit": (), "terminal": ("/usr/sbin/nginx",), "script": ("/etc/init.d/nginx", "start")}
    for way, command in ways.items():
        with running(*command):
            assert active() == (True, ""), way
            assert hybrid_is_offered(), way
            assert "libwattlock_provider" in mapped(pid())
            run("nginx", "-s", "reload")
            time.sleep(0.5)
            assert active() == (True, "") and hybrid_is_offered(), way
            # A new binary, which gets no variable but those that the configuration names; it alone brings the provider.
            NGINX.write_text("".join(line for line in on.splitlines(True) if "wattlock_openssl_conf" not in line))
            run("nginx", "-s", "reload")
            old = pid()
            os.kill(old, signal.SIGUSR2)
            until(lambda: pathlib.Path("/run/nginx.pid.oldbin").exists() and pathlib.Path("/run/nginx.pid").exists()
                  and pid() != old, "a new binary")
            os.kill(old, signal.SIGQUIT)
            until(lambda: not pathlib.Path("/run/nginx.pid.oldbin").exists(), "the old one ends")
            assert active() == (True, "") and hybrid_is_offered(), way
        # So do the environments of unit and script.
        with running(*command):
            assert active()[0] == (way != "terminal"), way
        NGINX.write_text(on)


def group(name):
    """Whether a client that knows this group alone has a handshake."""
    words = ["openssl", "s_client", "-connect", f"127.0.0.1:{PORT}", "-tls1_3", "-groups", name]
    environment = {**CLEAN, "OPENSSL_CONF": "/run/client.cnf"}
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, timeout=60)
    return done.returncode == 0


def case_groups_that_a_person_named_stay():
    site()
    enable("--hybrid")
    everything = {"X25519MLKEM768", "X25519", "P-256", "P-384", "P-521"}

    def offered(*groups):
        with running():
            assert {name for name in everything if group(name)} == set(groups), groups

    offered("X25519MLKEM768", "X25519", "P-256", "P-384")
    for command in ("Groups", "curves"):
        site(f"    ssl_conf_command {command} P-384;\n")
        offered("P-384")
    site("    ssl_conf_command Options ServerPreference;\n")
    offered("X25519MLKEM768", "X25519", "P-256", "P-384")
    site()
    system = "openssl_conf = a\n[a]\nssl_conf = c\n[c]\nsystem_default = e\n[e]\n"
    SYSTEM.write_text(system + "Curves = P-384\n1.Groups = P-521:P-256\n")
    offered("X25519MLKEM768", "P-521", "P-256")
    SYSTEM.write_text(system + "Groups = P-521:X25519\n")
    offered("X25519MLKEM768", "P-521", "X25519")


def case_a_running_nginx_takes_it_by_a_reload():
    with running():
        enable("--hybrid")
        site(STATUS)
        run("nginx", "-s", "reload")
        until(lambda: fetch("/wattlock_status")[1].startswith("{"), "the new worker")
        assert active() == (True, "") and hybrid_is_offered()
        site()
        disable()
        run("nginx", "-s", "reload")
        until(lambda: not hybrid_is_offered() or openssl_has_the_hybrid(), "the former groups")
        serves()


def case_restart_is_done_if_it_is_asked_for():
    with running("/usr/sbin/nginx"):
        old = pid()
        site()
        enable("--restart")
        site(STATUS)
        run("nginx", "-s", "reload")
        until(lambda: fetch("/wattlock_status")[1].startswith("{"), "the new worker")
        # The master tells the old worker to end 100 ms after it has started the new one.
        time.sleep(0.5)
        assert pid() != old and active() == (True, "")


# --- the guard ------------------------------------------------------------------------------------------------------


def patched(change):
    """The module, changed: a file of its own in its place."""
    data = change(MODULE.read_bytes())
    own(MODULE, data)


def own(place, data):
    """Puts bytes in the place of a file that is mounted there; none takes it away."""
    # Lazily: a running nginx has it.
    subprocess.run(["umount", "--lazy", place], check=True)
    place.unlink()
    if data is not None:
        place.write_bytes(data)


def mounted(place, source):
    place.unlink(missing_ok=True)
    place.touch()
    run("mount", "--bind", source, place)


def version():
    major, minor, patch = run("nginx", "-v").strip().rsplit("/", 1)[1].split()[0].split(".")
    return int(major) * 1_000_000 + int(minor) * 1000 + int(patch)


def of_another_version(data):
    now = version().to_bytes(8, "little")
    assert now in data
    return data.replace(now, (version() + 4002).to_bytes(8, "little"))


def of_another_build(data):
    at = data.index(b"8,4,8,")
    return data[:at + 6] + bytes([data[at + 6] ^ 1]) + data[at + 7:]


FATAL = """#include <stdlib.h>
__attribute__((constructor)) static void die(void) { abort(); }
"""


def hanging():
    """A provider that never comes back."""
    return library(FATAL.replace("abort()", "for (;;) pause()").replace("stdlib", "unistd"))


def fatal():
    """A provider that ends every program that loads it."""
    return library(FATAL)


def library(text):
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "f.c")
        source.write_text(text)
        run("cc", "-shared", "-fPIC", "-o", source.with_suffix(".so"), source)
        return source.with_suffix(".so").read_bytes()


def case_nginx_starts_whatever_becomes_of_module_and_provider():
    before = snapshot()
    damages = {
        "version": (MODULE, lambda: patched(of_another_version)),
        "build": (MODULE, lambda: patched(of_another_build)),
        "no module": (MODULE, lambda: own(MODULE, None)),
        "no elf": (MODULE, lambda: own(MODULE, b"text")),
        "no provider": (PROVIDER, lambda: own(PROVIDER, None)),
        "no library": (PROVIDER, lambda: own(PROVIDER, b"text")),
        "fatal": (PROVIDER, lambda: own(PROVIDER, fatal())),
    }
    for name, (place, damage) in damages.items():
        enable("--hybrid")
        on, block = NGINX.read_text(), OWN.read_bytes()
        damage()
        without_provider = name == "no library"
        if place == PROVIDER and name != "fatal":
            said = run("nginx", "-t")
            assert "no provider: " in said and "no X25519MLKEM768" in said or openssl_has_the_hybrid(), said
        for command in ((), ("/etc/init.d/nginx", "restart")):
            NGINX.write_text(on)
            OWN.write_bytes(block)
            with running(*command) as said:
                serves()
                assert openssl_has_the_hybrid() or not hybrid_is_offered(), name
                if not command and not without_provider:
                    assert said.count("wattlock: nginx starts without Wattlock") == 1, f"{name}: {said}"
                    assert "wattlock nginx enable --hybrid` puts them back" in said, said
            assert (MARK in NGINX.read_text()) == without_provider, name
            run("nginx", "-t", "-q")
        assert guard() == "", "a second time there is nothing to do"
        mounted(place, ARGS.module if place == MODULE else ARGS.provider)
        if without_provider:
            with running():
                assert hybrid_is_offered(), "it is there again when the provider is"
        enable("--hybrid")
        assert NGINX.read_text() == on, "its lines are back"
        assert guard() == ""
        with running():
            assert hybrid_is_offered(), name
        disable()
        same(before, snapshot())
        # Also with the lines out already.
        enable()
        damage()
        guard()
        disable()
        same(before, snapshot())
        mounted(place, ARGS.module if place == MODULE else ARGS.provider)


def case_an_upgrade_by_the_init_script_meets_a_module_that_does_not_fit():
    with running("/etc/init.d/nginx", "start"):
        enable("--restart")
        old = pid()
        patched(of_another_version)
        run("/etc/init.d/nginx", "upgrade")
        assert pid() != old and MARK not in NGINX.read_text()
        serves()


def case_the_guard_leaves_what_works_and_what_others_wrote():
    before = snapshot()
    assert guard() == ""
    same(before, snapshot())
    enable("--hybrid")
    with_it = snapshot()
    assert guard() == ""
    same(with_it, snapshot())
    # Neither does what was refused for a moment.
    flaky, once = pathlib.Path("/run/flaky"), pathlib.Path("/run/once")
    flaky.write_text(f"#!/bin/sh\nif [ $1 != -V ] && [ ! -e {once} ]; then\n    touch {once}\n"
                     "    echo 'nginx: [emerg] no space' >&2\n    exit 1\nfi\nexec /usr/sbin/nginx \"$@\"\n")
    flaky.chmod(0o755)
    assert run(WATTLOCK, "nginx", "guard", "--nginx", flaky, "--config", NGINX) == "" and once.exists()
    same(with_it, snapshot())
    # What nginx refuses for another reason stays, with a line by hand for a module that does not fit.
    site(STATUS)
    bad = NGINX.parent / "conf.d/z.conf"
    bad.write_text("no_such_directive on;\n")
    theirs = snapshot()
    patched(of_another_version)
    assert "no_such_directive" in guard()
    same(theirs, snapshot())
    # So does a module that another file loads.
    bad.unlink()
    site()
    disable()
    (NGINX.parent / "modules-enabled/w.conf").write_text(f"load_module {MODULE};\n")
    loaded = snapshot()
    assert guard() == ""
    same(loaded, snapshot())


def case_directives_by_hand_do_not_keep_nginx_down():
    before = snapshot()
    enable()
    site(STATUS)
    on = NGINX.read_text()
    NGINX.write_text(on.replace("access_log off;", "access_log off; wattlock_poll 1;"))
    patched(of_another_version)
    with running() as said:
        serves()
    assert f"line 6 of {SITE}" in said and f"comments: {NGINX}" in said, said
    assert "# wattlock_status; # set aside" in SITE.read_text() and "# wattlock_poll 1;" in NGINX.read_text()
    assert guard() == ""
    site()
    NGINX.write_bytes(before[str(NGINX)][3])
    disable()
    same(before, snapshot())


def case_a_provider_that_ends_nginx_goes_also_without_the_lines():
    """Whoever took the lines out, the service still has OPENSSL_CONF."""
    before = snapshot()
    for damage in (fatal, hanging):
        enable()
        run(WATTLOCK, "openssl", "enable", "--yes", "--config", OWN, "--set", "objective=energy")
        assert not list(OWN.parent.glob("*.before*")), "a backup of a file of our own"
        on = OWN.read_text()
        NGINX.write_bytes(before[str(NGINX)][3])
        assert guard() == ""
        own(PROVIDER, damage())
        with running() as said:
            serves()
        assert f"whose block in {OWN} is idle" in said and said.count("wattlock: ") == 1, said
        assert guard() == "" and NGINX.read_bytes() == before[str(NGINX)][3]
        # Its settings are there again when it is enabled again.
        mounted(PROVIDER, ARGS.provider)
        enable()
        assert OWN.read_text() == on
        disable()
        for left in NGINX.parent.glob("*.before-wattlock*"):
            left.unlink()
        same(before, snapshot())


def case_the_guard_follows_the_systems_openssl_cnf():
    before = snapshot()
    enable()
    with running():
        assert aes_256() == 0
    theirs = "openssl_conf = a\n[a]\nproviders = b\nssl_conf = c\nalg_section = p\n[b]\ndefault = d\n[d]\n"
    theirs += "activate = 1\n[c]\nsystem_default = e\n[e]\nCiphersuites = TLS_AES_128_GCM_SHA256\n"
    theirs += "[p]\ndefault_properties = x=y\n"
    SYSTEM.write_text(theirs.replace("x=y", "?x=y"))
    refused(WATTLOCK, "nginx", "check")
    with running() as said:
        serves()
        assert aes_256() != 0, "what the system says of TLS is not heard"
    assert "follows it" in said and "?x=y,?provider=wattlock" in OWN.read_text(), said
    assert guard() == ""
    run("nginx", "-t", "-q")
    # What cannot be followed is heard, and Wattlock is not.
    SYSTEM.write_text(theirs.replace("x=y", "provider=default"))
    with running() as said:
        serves()
    assert said.count(f"{OWN} is without Wattlock") == 1, said
    assert guard() == "" and MARK in NGINX.read_text()
    # It is there again once it can follow.
    SYSTEM.write_bytes(before[str(SYSTEM)][3])
    site(STATUS)
    with running() as said:
        assert active() == (True, "")
    assert "follows it" in said and guard() == "", said
    site()
    disable()
    same(before, snapshot())


def case_the_packages_module_that_does_not_fit_is_taken_out():
    link = NGINX.parent / "modules-enabled/50-mod-http-wattlock.conf"
    target = pathlib.Path("/run/mod-http-wattlock.conf")
    removed = pathlib.Path(f"{link}.removed")
    target.write_text(f"load_module {MODULE};\n")
    link.symlink_to(target)
    before = snapshot()
    for marked in (True, False):
        if marked:
            enable()
        assert guard() == ""
        patched(of_another_version)
        with running("/bin/sh", "-c", f"{WATTLOCK} nginx guard; nginx") as said:
            serves()
        assert str(removed) in said and removed.is_symlink() and not link.is_symlink(), said
        assert guard() == ""
        mounted(MODULE, ARGS.module)
        assert "mv " in refused(WATTLOCK, "nginx", "enable", "--yes")
        removed.rename(link)
        enable()
        disable()
        same(before, snapshot())
    # A file by that name, which a person wrote, stays.
    link.unlink()
    link.write_text(f"load_module {MODULE};\n")
    before = snapshot()
    patched(of_another_version)
    guard()
    same(before, snapshot())


def case_what_the_guard_will_demand_is_asked_first():
    def asked(words, *more):
        before = snapshot()
        said = refused(WATTLOCK, "nginx", "enable", "--yes", *more)
        assert words in said, said
        same(before, snapshot())

    for path in (NGINX, NGINX.parent):
        os.chown(path, 1000, 0)
        asked("root would trust it")
        os.chown(path, 0, 0)
    for part, option in ((MODULE, "--module"), (PROVIDER, "--provider")):
        theirs = pathlib.Path("/run/theirs.so")
        shutil.copy(part, theirs)
        os.chown(theirs, 1000, 0)
        asked("root would trust it", option, theirs)
        theirs.unlink()
    program = pathlib.Path("/usr/local/bin/openssl")
    program.write_text("#!/bin/sh\n[ \"$*\" != 'version -d' ] || { echo 'OPENSSLDIR: \"/opt/other\"'; exit; }\n"
                       "exec /usr/bin/openssl \"$@\"\n")
    program.chmod(0o755)
    asked("nginx's libcrypto reads /etc/ssl/openssl.cnf")
    program.unlink()
    other = NGINX.with_name("other")
    other.hardlink_to(NGINX)
    asked("hard link")
    other.unlink()
    # A unit that starts nginx with another configuration.
    DROPIN.parent.mkdir(exist_ok=True)
    override = DROPIN.parent / "a.conf"
    for words in ("-c /etc/nginx/other.conf", "-p /srv"):
        override.write_text(f"[Service]\nExecStart=\nExecStart=/usr/sbin/nginx {words}\n")
        asked(words)
    override.write_text(f"[Service]\nExecStart=\nExecStart=/usr/sbin/nginx -c {NGINX}\n")
    enable()


def case_a_step_that_fails_undoes_all():
    before = snapshot()
    # The drop-in cannot be written: before the lines.
    DROPIN.parent.parent.mkdir(exist_ok=True)
    DROPIN.parent.write_text("")
    broken = snapshot()
    refused(WATTLOCK, "nginx", "enable", "--yes")
    same(broken, snapshot())
    DROPIN.parent.unlink()
    same(before, snapshot())
    enable()
    # What is in use as a mount cannot be taken away: the lines come back.
    run("mount", "--bind", OWN, OWN)
    on = snapshot()
    refused(WATTLOCK, "nginx", "disable", "--yes")
    same(on, snapshot())
    run("umount", OWN)
    disable()
    same(before, snapshot())


def case_a_link_and_relative_includes_are_read_as_nginx_reads_them():
    kept = pathlib.Path("/etc/kept")
    kept.mkdir()
    target = kept / "main.conf"
    text = NGINX.read_text().replace("include /etc/nginx/", "include ")
    target.write_bytes(text.replace("user", "# caf\u00e9\nuser", 1).encode("latin-1"))
    os.setxattr(target, "system.posix_acl_access", ACL)
    NGINX.unlink()
    NGINX.symlink_to(target)
    run("nginx", "-t", "-q")
    before = snapshot()
    enable("--hybrid")
    assert NGINX.is_symlink() and os.getxattr(target, "system.posix_acl_access") == ACL
    assert MARK in target.read_bytes().decode("latin-1")
    site(STATUS)
    with running():
        assert active() == (True, "")
    site()
    patched(of_another_version)
    with running() as said:
        serves()
    assert "nginx starts without Wattlock" in said, said
    mounted(MODULE, ARGS.module)
    disable()
    same(before, snapshot())
    assert os.getxattr(target, "system.posix_acl_access") == ACL


def case_the_guard_follows_nobodys_links_and_takes_what_it_is_given():
    enable()
    patched(of_another_version)
    folder = pathlib.Path("/run/theirs")
    folder.mkdir()
    os.chown(folder, 1000, 1000)
    theirs = folder / "nginx.conf"
    shutil.copy(NGINX, theirs)
    text = theirs.read_text()
    link = pathlib.Path("/run/link.conf")
    link.symlink_to(theirs)
    for config in (theirs, link):
        said = run(WATTLOCK, "nginx", "guard", "--nginx", "/usr/sbin/nginx", "--config", config)
        assert "changes nothing" in said, said
        assert theirs.read_text() == text
    for words in (["--config", "/no/such"], ["--nginx", "/no/such"], ["--nginx", "/bin/false", "--config", NGINX]):
        said = run(WATTLOCK, "nginx", "guard", *words)
        assert said.count("\n") == 1 and "changes nothing" in said, said
    assert MARK in NGINX.read_text()


def case_a_profile_that_cannot_be_read_changes_nothing():
    enable("--hybrid")
    site(STATUS)
    on = snapshot()
    profile = pathlib.Path("/var/lib/wattlock/profile.json")
    for make in (profile.mkdir, lambda: profile.write_bytes(b"\xff" * 4096), lambda: profile.symlink_to(profile.name),
                 lambda: os.mkfifo(profile)):
        make()
        assert guard() == ""
        with running():
            assert active() == (True, "")
        shutil.rmtree(profile) if profile.is_dir() else profile.unlink()
    same(on, snapshot())


def case_scripts_of_packages_undo_it_and_guard_a_new_nginx():
    def script(name, *words):
        """A package's script; it looks for programs where packages install them, and here they are elsewhere."""
        text = (HERE.parents[1] / "debian" / name).read_text()
        assert "\nPATH=" in text
        text = text.replace("/usr/bin/wattlock nginx guard", f"{WATTLOCK} nginx guard")
        text = text.replace("(/usr/(lib|share)/nginx/)?modules/", f"{MODULE.parent}/")
        run("sh", "-c", text.replace("\nPATH=", "\nPATH=/usr/local/bin:"), name, *words)

    before = snapshot()
    for name in ("libnginx-mod-http-wattlock", "wattlock-openssl-provider", "wattlock"):
        enable("--hybrid")
        if name == "wattlock-openssl-provider":
            on = snapshot()
            script(f"{name}.prerm", "remove")
            same(on, snapshot())
            packaged = next(pathlib.Path("/usr/lib").glob("*-linux-gnu/ossl-modules"))
            run("mount", "-t", "tmpfs", "-o", "mode=755", "none", packaged)
            shutil.copy(PROVIDER, packaged / "wattlock.so")
            enable("--provider", packaged / "wattlock.so")
        script(f"{name}.prerm", "upgrade", "2")
        assert OWN.exists() and MARK in NGINX.read_text(), name
        script(f"{name}.prerm", "remove")
        same(before, snapshot())
        script(f"{name}.prerm", "remove")
        same(before, snapshot())
    # An nginx that is broken for another reason, and one that the module does not fit any more.
    enable()
    bad = pathlib.Path("/etc/nginx/conf.d/bad.conf")
    bad.write_text("no_such_directive on;\n")
    script("libnginx-mod-http-wattlock.prerm", "remove")
    bad.unlink()
    same(before, snapshot())
    # The same with line ends of another system.
    NGINX.write_bytes(NGINX.read_bytes().replace(b"\n", b"\r\n"))
    crlf = snapshot()
    enable()
    bad.write_text("no_such_directive on;\n")
    run("mount", "--bind", "/bin/false", WATTLOCK)
    script("libnginx-mod-http-wattlock.prerm", "remove")
    run("umount", WATTLOCK)
    assert MARK not in NGINX.read_text()
    bad.unlink()
    disable()
    same(crlf, snapshot())
    NGINX.write_bytes(before[str(NGINX)][3])
    enable()
    script("wattlock.postinst", "triggered", "/usr/sbin/nginx")
    assert MARK in NGINX.read_text()
    patched(of_another_version)
    script("wattlock.postinst", "triggered", "/usr/sbin/nginx")
    run("nginx", "-t", "-q")
    assert MARK not in NGINX.read_text()
    # nginx itself is gone.
    run("mount", "--bind", "/dev/null", "/usr/sbin/nginx")
    script("wattlock.prerm", "remove")
    run("umount", "/usr/sbin/nginx")
    same(before, snapshot())


def case_the_guard_writes_what_nginx_has_accepted():
    enable()
    curves = "    ssl_ecdh_curve X25519MLKEM768:X25519;\n"
    system, on = SYSTEM.read_bytes(), OWN.read_bytes()
    # A file that cannot be followed, where nginx does not start without the provider.
    site(STATUS + curves)
    SYSTEM.write_text("openssl_conf = i\n[i]\nproviders = p\nalg_section = a\n[p]\ndefault = d\n[d]\nactivate = 1\n"
                      "[a]\ndefault_properties = ?provider=other\n")
    with running() as said:
        assert active()[0] != openssl_has_the_hybrid()
    assert openssl_has_the_hybrid() or "does not follow" in said and OWN.read_bytes() == on, said
    # One that is written at that moment.
    SYSTEM.write_text("openssl_conf = i\n[i")
    for more in (curves, ""):
        site(STATUS + more)
        guard()
        guard()
        SYSTEM.write_bytes(system)
        with running():
            assert active() == (True, ""), more
        assert OWN.read_bytes() == on and guard() == ""
        SYSTEM.write_text("openssl_conf = i\n[i")
    site()
    with running():
        serves()


def case_words_of_other_users_are_not_believed():
    site(STATUS)
    enable("--hybrid")
    theirs = SITE.with_name("z-theirs.conf")
    place = f"{SITE}:{1 + SITE.read_text().splitlines().index(STATUS.rstrip())}"
    link = NGINX.parent / "modules-enabled/50-mod-http-wattlock.conf"
    for words in ("wattlock: no provider: ha", "x\nnginx: [warn] wattlock: no provider: ha",
                  f'x\nnginx: [emerg] unknown directive "wattlock_status" in {place}',
                  f"x\nnginx: [emerg] module wattlock in {link}:1"):
        # Twice one name: nginx says it. Then also with a fault of another kind behind it, and in such a fault.
        server, text = f"server {{ listen 127.0.0.1:1; server_name '{words}'; }}\n", NGINX.read_text()
        twice, bad = server + server, "no_such_directive on;\n"
        for conf, bad in ((twice, ""), (twice, bad), (f"'{words}' on;\n", "")):
            theirs.write_text(conf)
            os.chown(theirs, 1000, 1000)
            NGINX.write_text(text + bad)
            said = subprocess.run(["nginx", "-t", "-q"], capture_output=True, text=True, env=CLEAN).stderr
            assert words in said, said
            on = snapshot()
            assert (guard() == "") == ("test failed" not in said), said
            same(on, snapshot())
            NGINX.write_text(text)


def replaced(script):
    """A program in the place of nginx; the former is /run/nginx-real."""
    shutil.copy2("/usr/sbin/nginx", "/run/nginx-real")
    other = pathlib.Path("/run/nginx-other")
    other.write_text(f"#!/bin/sh\n{script}\nexec /run/nginx-real \"$@\"\n")
    other.chmod(0o755)
    run("mount", "--bind", other, "/usr/sbin/nginx")


def case_a_fault_that_passes_takes_nothing_out():
    site(STATUS)
    enable("--hybrid")
    on = snapshot()
    count = "[ \"$1\" = -t ] && { n=$(cat /run/n 2>/dev/null || echo 0); echo $((n + 1)) >/run/n; %s; }"
    host = "echo 'nginx: [emerg] host not found in upstream \"wattlock\" in /etc/nginx/conf.d/a.conf:3' >&2; exit 1"
    for fault in ("[ $n = 0 ] && sleep 17", f"[ $n -lt 2 ] && {{ {host}; }}"):
        pathlib.Path("/run/n").unlink(missing_ok=True)
        replaced(count % fault)
        assert guard() == "", fault
        same(on, snapshot())
        assert int(pathlib.Path("/run/n").read_text()) > 1
        run("umount", "/usr/sbin/nginx")


def case_a_full_folder_of_temporary_files_does_not_stop_the_guard():
    enable()
    patched(of_another_version)
    run("mount", "-t", "tmpfs", "-o", "nr_inodes=3", "none", "/tmp")
    for number in range(9):
        with contextlib.suppress(OSError):
            pathlib.Path(f"/tmp/{number}").touch()
    assert "nginx starts without Wattlock" in guard()
    run("nginx", "-t", "-q")


def case_guards_at_one_time_leave_what_starts():
    enable()
    site(STATUS)
    patched(of_another_version)
    words = [WATTLOCK, "nginx", "guard", "--nginx", "/usr/sbin/nginx", "--config", NGINX]
    guards = [subprocess.Popen(words, env=CLEAN, stderr=subprocess.PIPE, text=True) for _ in range(6)]
    said = [one.communicate()[1] for one in guards]
    assert sum("nginx starts without Wattlock" in one for one in said) == 1, said
    run("nginx", "-t", "-q")
    assert SITE.read_text().count("# set aside") == 1


def case_a_directive_that_comes_back_later_is_set_aside_too():
    enable()
    own(PROVIDER, fatal())
    guard()
    assert MARK not in NGINX.read_text()
    site(STATUS)
    with running() as said:
        serves()
    assert str(SITE) in said, said


def case_only_nginxs_own_file_is_written():
    """A configuration that names another file, by hand, has that from a person."""
    run(WATTLOCK, "openssl", "enable", "--yes")
    run(WATTLOCK, "nginx", "enable", "-y", "--all-programs")
    NGINX.write_text(NGINX.read_text().replace("access_log off;", f"access_log off; wattlock_openssl_conf {SYSTEM};"))
    run("nginx", "-t", "-q")
    on = snapshot()
    assert guard() == ""
    same(on, snapshot())


def case_wattlock_for_every_program_does_not_end_that_of_nginx():
    before = snapshot()
    site(STATUS)
    enable("--hybrid")
    on = snapshot()
    run(WATTLOCK, "openssl", "enable", "--yes")
    assert guard() == ""
    with running():
        assert active() == (True, "")
    run(WATTLOCK, "openssl", "disable", "--yes")
    assert guard() == ""
    same(on, snapshot())
    with running():
        assert active() == (True, "")
    site()
    disable()
    same(before, snapshot())


def case_a_restart_that_fails_undoes_all():
    script = pathlib.Path("/etc/init.d/nginx")
    script.write_text(script.read_text().replace("#!/bin/sh", "#!/bin/sh\n[ \"$1\" != restart ] || exit 1", 1))
    before = snapshot()
    said = refused(WATTLOCK, "nginx", "enable", "--yes", "--restart")
    assert "everything is as it was" in said, said
    same(before, snapshot())


def case_what_is_made_can_be_read_whatever_the_umask():
    run("sh", "-c", f"umask 077; {WATTLOCK} nginx enable --yes")
    for path in (OWN, DROPIN):
        assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o644, 0o755)
    disable()
    nothing_of_ours()


def case_systemd_knows_the_guard_before_there_are_lines():
    pathlib.Path("/run/systemd/system").mkdir(parents=True)
    program = pathlib.Path("/usr/local/sbin/systemctl")
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\necho $1 $(grep -c '{MARK}' {NGINX}) $(test -e {DROPIN} && echo guarded) "
                       ">>/run/calls\n")
    program.chmod(0o755)
    calls = pathlib.Path("/run/calls")
    enable()
    assert calls.read_text().splitlines()[0] == "daemon-reload 0 guarded", calls.read_text()
    calls.unlink()
    disable()
    assert calls.read_text() == "daemon-reload 0\n", calls.read_text()
    # Also if nobody reads what is said.
    calls.unlink()
    run("sh", "-c", f"{WATTLOCK} nginx enable --yes | head -c 100 >/dev/null; true")
    assert MARK not in NGINX.read_text() or calls.exists()


def case_a_second_nginx_takes_nothing_from_the_first():
    enable("--hybrid")
    other = pathlib.Path("/usr/local/nginx/sbin/nginx")
    other.parent.mkdir(parents=True)
    program = pathlib.Path("/usr/sbin/nginx").read_bytes()
    assert b"/etc/nginx/nginx.conf\0" in program
    program = program.replace(b"/etc/nginx/nginx.conf\0", b"/etc/ngin2/nginx.conf\0")
    other.write_bytes(program.replace(b"--conf-path=/etc/nginx/nginx.conf", b"--conf-path=/etc/ngin2/nginx.conf"))
    other.chmod(0o755)
    pathlib.Path("/etc/ngin2").mkdir()
    pathlib.Path("/etc/ngin2/nginx.conf").write_text(CONF)
    on = snapshot()
    assert "nothing to change" in disable("--nginx", other)
    same(on, snapshot())
    assert "nothing guards its start" in enable("--nginx", other)
    assert MARK in pathlib.Path("/etc/ngin2/nginx.conf").read_text() and OWN.read_bytes() == on[str(OWN)][3]
    disable("--nginx", other)
    same(on, snapshot())
    disable()
    nothing_of_ours()


def case_a_unit_with_another_configuration_is_guarded_there():
    other = NGINX.with_name("other.conf")
    other.write_text(CONF)
    override = DROPIN.parent / "a.conf"
    override.parent.mkdir()
    override.write_text(f"[Service]\nExecStartPre=\nExecStart=\nExecStart=/usr/sbin/nginx -c {other}\n")
    before = snapshot()
    assert str(other) in refused(WATTLOCK, "nginx", "enable", "--yes")
    enable("--config", other)
    assert f"--config {other}" in DROPIN.read_text() and OWN.exists() and MARK in other.read_text()
    patched(of_another_version)
    with running() as said:
        serves()
    assert "nginx starts without Wattlock" in said, said
    disable("--config", other)
    same(before, snapshot())


def case_the_packages_link_lives_with_an_idle_block_and_a_lost_provider():
    link = NGINX.parent / "modules-enabled/50-mod-http-wattlock.conf"
    target = pathlib.Path("/run/mod-http-wattlock.conf")
    target.write_text(f"load_module {MODULE};\n")
    link.symlink_to(target)
    before = snapshot()
    enable()
    on = OWN.read_text()
    # What is not written is not read: nginx died of it every other time.
    for block, provider in ((on, None), ("".join(f"# idle: {line}\n" for line in on.splitlines()), ARGS.provider)):
        OWN.write_text(block)
        own(PROVIDER, None) if provider is None else mounted(PROVIDER, provider)
        for _ in range(20):
            assert "no provider: " in run("nginx", "-t")
    # A module that ends nginx, beside an idle block, and where a server needs the provider.
    for block in (OWN.read_text(), on):
        OWN.write_text(block)
        own(MODULE, fatal())
        with running() as said:
            serves()
        assert "by the name" in said and not link.is_symlink(), said
        mounted(MODULE, ARGS.module)
        link.with_name(link.name + ".removed").rename(link)
        enable()
    disable()
    same(before, snapshot())


def case_files_of_the_service_that_cannot_be_read_do_not_stop_the_guard():
    for spoilt in (DROPIN, DEFAULTS):
        before = snapshot()
        enable()
        kept = spoilt.read_text()
        for text in (kept.replace("# END wattlock\n", ""), None):
            spoilt.unlink()
            spoilt.symlink_to("/run/elsewhere") if text is None else spoilt.write_text(text)
            on = NGINX.read_text()
            patched(of_another_version)
            guard()
            run("nginx", "-t", "-q")
            mounted(MODULE, ARGS.module)
            spoilt.unlink()
            spoilt.write_text(kept)
            NGINX.write_text(on)
        disable()
        same(before, snapshot())


def case_disable_takes_all_out_whatever_starts_nginx_by_now():
    before = snapshot()
    enable()
    other, override = NGINX.with_name("other.conf"), DROPIN.parent / "a.conf"
    override.write_text(f"[Service]\nExecStartPre=\nExecStart=\nExecStart=/usr/sbin/nginx -c {other}\n")
    other.write_text(CONF)
    disable()
    override.unlink()
    other.unlink()
    DROPIN.parent.rmdir()
    same(before, snapshot())
    # And what starts it by now is enabled whole.
    enable()
    DROPIN.parent.joinpath("a.conf").write_text(f"[Service]\nExecStart=\nExecStart=/usr/sbin/nginx -c {other}\n")
    other.write_text(CONF)
    enable("--config", other)
    assert f"--config {other}" in DROPIN.read_text() and OWN.exists() and MARK in other.read_text()


def case_what_the_guard_cannot_take_out_is_said_or_refused_first():
    other = NGINX.parent / "modules-enabled/mine.conf"
    other.write_text(f"load_module {MODULE};\n")
    before = snapshot()
    assert str(other) in refused(WATTLOCK, "nginx", "enable", "--yes")
    same(before, snapshot())
    other.unlink()
    enable()
    site("    location = /w { wattlock_status\n; }\n    location = /v { \"wattlock_status\"; }\n")
    lines = SITE.read_text().splitlines()
    found = [number for number, line in enumerate(lines, 1) if "wattlock_status" in line]
    run("nginx", "-t", "-q")
    said = enable()
    assert all(f"{SITE}:{number}: " in said for number in found), said
    site(STATUS)
    os.chown(SITE, 1000, 1000)
    said = enable()
    assert f"{SITE}:" in said and "belongs to user 1000" in said, said
    os.chown(SITE, 0, 0)
    assert "the guard cannot" not in enable()


# --- HAProxy --------------------------------------------------------------------------------------------------------


def case_haproxy_has_it_alone_and_gives_it_back():
    if not os.path.exists("/usr/sbin/haproxy"):
        raise NotRun("no haproxy")
    before = snapshot()
    conf, script = pathlib.Path("/etc/haproxy/haproxy.cfg"), pathlib.Path("/etc/init.d/haproxy")
    for path, text in ((conf, "nonsense\n"), (script, "#!/bin/sh\nexit 1\n")):
        path.write_text(text)
        broken = snapshot()
        said = refused(WATTLOCK, "haproxy", "enable", "--yes", "--restart")
        assert "as it was" in said, said
        same(broken, snapshot())
        path.write_bytes(before[str(path)][3])
    said = run(WATTLOCK, "haproxy", "enable", "--yes")
    dropin = pathlib.Path("/etc/systemd/system/haproxy.service.d/wattlock.conf")
    assert "Environment=OPENSSL_CONF=/etc/wattlock/haproxy-openssl.cnf" in dropin.read_text(), said
    assert "nothing to change" in run(WATTLOCK, "haproxy", "enable", "--yes")
    conf.write_text("global\n  maxconn 100\ndefaults\n  mode http\n  timeout connect 5s\n  timeout client 5s\n"
                    "  timeout server 5s\nfrontend f\n"
                    f"  bind 127.0.0.1:{PORT} ssl crt /run/both.pem curves X25519MLKEM768\n"
                    "  http-request return status 200 content-type text/plain string hello\n")
    pathlib.Path("/run/both.pem").write_text(
        pathlib.Path("/run/site.pem").read_text() + pathlib.Path("/run/site.key").read_text())
    unit = pathlib.Path("/lib/systemd/system/haproxy.service").read_text()
    override = "[Service]\nExecStart=\nExecStart=/usr/sbin/haproxy -D -f $CONFIG -p $PIDFILE\n"
    assert "ExecStart=" in unit
    (dropin.parent / "z.conf").write_text(override)
    run(sys.executable, HERE / "unit.py", "haproxy")
    try:
        until(hybrid_is_offered, "haproxy answers with the hybrid")
    finally:
        os.kill(int(pathlib.Path("/run/haproxy.pid").read_text().split()[0]), signal.SIGTERM)
    (dropin.parent / "z.conf").unlink()
    # Without the provider it does not start.
    on = snapshot()
    if not openssl_has_the_hybrid():
        assert "does not start without" in refused("setsid", WATTLOCK, "haproxy", "disable")
        same(on, snapshot())
    fails = script.read_bytes()
    script.write_text("#!/bin/sh\nexit 1\n")
    broken = snapshot()
    said = refused(WATTLOCK, "haproxy", "disable", "--yes", "--restart")
    assert "as it was" in said and (openssl_has_the_hybrid() or "does not start without" in said), said
    same(broken, snapshot())
    script.write_bytes(fails)
    conf.write_bytes(before[str(conf)][3])
    run(WATTLOCK, "haproxy", "disable", "--yes")
    same(before, snapshot())
    assert "nothing to change" in run(WATTLOCK, "haproxy", "disable", "--yes")


CASES = {name[5:]: function for name, function in globals().items() if name.startswith("case_")}
ARGS = None


def outside():
    """The same in namespaces of its own."""
    if os.geteuid() != 0:
        raise NotRun("it takes root")
    words = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, *sys.argv]
    with tempfile.TemporaryDirectory(prefix="wattlock-enable-") as work:
        os.chmod(work, 0o755)
        done = subprocess.run(words, env={**os.environ, "WATTLOCK_TEST_WORK": work})
    sys.exit(done.returncode)


def reap():
    """Returns in a child. The first process of a namespace inherits every daemon, and must take note when one ends."""
    child = os.fork()
    while child != 0:
        ended, status = os.wait()
        if ended == child:
            sys.exit(os.waitstatus_to_exitcode(status))


def inside(work):
    """Folders of its own in the places of the machine's."""
    reap()
    run("cp", "-a", "/etc", work / "etc")
    for name in ("run", "log", "lib/nginx", "lib/haproxy", "lib/wattlock", "usr-local"):
        (work / name).mkdir(parents=True)
    for name, place in (("etc", "/etc"), ("run", "/run"), ("log", "/var/log/nginx"), ("lib", "/var/lib"),
                        ("usr-local", "/usr/local")):
        run("mount", "--bind", work / name, place)
    for place, source in ((pathlib.Path(WATTLOCK), ARGS.program), (MODULE, ARGS.module), (PROVIDER, ARGS.provider)):
        place.parent.mkdir(parents=True, exist_ok=True)
        mounted(place, source)
    for folder in ("/etc/nginx/modules-enabled", "/etc/nginx/conf.d", "/etc/wattlock",
                   "/etc/systemd/system/nginx.service.d", "/etc/systemd/system/haproxy.service.d"):
        shutil.rmtree(folder, ignore_errors=True)
    for folder in ("modules-enabled", "conf.d"):
        (NGINX.parent / folder).mkdir()
    NGINX.write_text(CONF)
    if not pathlib.Path("/lib/systemd/system/nginx.service").exists():
        pathlib.Path("/etc/systemd/system/nginx.service").write_text(UNIT)
    run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "/run/site.key", "-out", "/run/site.pem",
        "-subj", "/CN=localhost", "-days", "2")
    pathlib.Path("/run/client.cnf").write_text(
        "openssl_conf = a\n[a]\nproviders = b\n[b]\ndefault = c\nwattlock = d\n[c]\nactivate = 1\n"
        f"[d]\nmodule = {ARGS.provider}\nactivate = 1\n")
    site()
    run("nginx", "-t", "-q")


def main():
    global ARGS
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=[*CASES, "list"])
    for name in ("program", "module", "provider"):
        parser.add_argument(f"--{name}", type=os.path.abspath)
    ARGS = parser.parse_args()
    if ARGS.name == "list":
        print("\n".join(CASES))
        return
    try:
        if "WATTLOCK_TEST_WORK" not in os.environ:
            outside()
        inside(pathlib.Path(os.environ["WATTLOCK_TEST_WORK"]))
        CASES[ARGS.name]()
    except NotRun as why:
        print(f"{ARGS.name}: not run: {why}")
    else:
        print(f"{ARGS.name}: good")


if __name__ == "__main__":
    main()
