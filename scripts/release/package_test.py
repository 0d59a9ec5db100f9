#!/usr/bin/env python3
"""What the packages promise, in a root of its own: scripts/release/package-test.sh makes that and runs this in it, as root.

    package_test.py FOLDER [NAME...]        FOLDER has the packages; NAME is a part of a test's name

The root is changed: never run this on a machine that is used.
"""

import contextlib
import hashlib
import http.client
import json
import os
import pathlib
import pty
import re
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import tempfile
import threading
import time
import traceback

MODULE, PROVIDER, PROGRAM, TOOLS, BRIDGE = (
    "libnginx-mod-http-wattlock",
    "wattlock-openssl-provider",
    "wattlock",
    "wattlock-tools",
    "wattlock-bridge",
)
NGINX_CONF, OPENSSL_CONF = pathlib.Path("/etc/nginx/nginx.conf"), pathlib.Path("/etc/ssl/openssl.cnf")
LINK = pathlib.Path("/etc/nginx/modules-enabled/50-mod-http-wattlock.conf")
PORT = 8443
# What dpkg, apt, ldconfig and man-db write of themselves.
RECORDS = [
    "/etc/ld.so.cache",
    "/var/cache/apt",
    "/var/cache/ldconfig/aux-cache",
    "/var/cache/man",
    "/var/lib/apt",
    "/var/lib/dpkg",
    "/var/log/apt",
    "/var/log/dpkg.log",
]
# What nginx writes when it runs.
RUNS = ["/var/log/nginx", "/var/lib/nginx"]


def run(*words, good=True, **more):
    """Runs a command; its status and what it said."""
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
    if good and done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, words))}: status {done.returncode}\n{done.stdout}")
    return done.returncode, done.stdout


def refused(*words, **more):
    status, said = run(*words, good=False, **more)
    assert status != 0, f"{words} was not refused: {said}"
    return said


def snapshot():
    """Every name below /etc, /usr and /var: kind, permissions, owner, and the content."""
    seen = {}
    for top in ("/etc", "/usr", "/var"):
        for folder, folders, files in os.walk(top):
            folders[:] = [one for one in folders if not is_record(os.path.join(folder, one))]
            for name in [*folders, *files]:
                path = os.path.join(folder, name)
                if is_record(path):
                    continue
                about = os.lstat(path)
                content = ""
                if stat.S_ISLNK(about.st_mode):
                    content = os.readlink(path)
                elif stat.S_ISREG(about.st_mode):
                    with open(path, "rb") as file:
                        content = hashlib.file_digest(file, "sha256").hexdigest()
                seen[path] = (stat.filemode(about.st_mode), about.st_uid, about.st_gid, content)
    return seen


def is_record(path):
    return any(path == one or path.startswith(one + "/") for one in RECORDS + RUNS)


def differences(before, after):
    names = sorted(before.keys() | after.keys())
    return [(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)]


def restored(before):
    """/etc as it was: `before` is a copy."""
    for folder, _, files in os.walk("/etc"):
        for name in files:
            path = os.path.join(folder, name)
            if not is_record(path) and not os.path.lexists(f"{before}{path.removeprefix('/etc')}"):
                os.unlink(path)
    run("cp", "-a", "--remove-destination", f"{before}/.", "/etc")
    for folder in ("/etc/wattlock", "/etc/systemd/system/nginx.service.d"):
        with contextlib.suppress(OSError):
            os.rmdir(folder)


class Packages:
    """The packages as files, and what is done with them."""

    def __init__(self, folder):
        files = sorted(pathlib.Path(folder).glob("*.deb"))
        self.files = {one.name.split("_")[0]: one for one in files if "-dbgsym_" not in one.name}
        assert {MODULE, PROVIDER, PROGRAM, TOOLS} <= self.files.keys(), f"not all packages are in {folder}"
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="packages-"))

    def install(self, *names, **more):
        files = [str(self.files[name]) for name in names or self.files]
        return apt("install", *files, **more)

    def purge(self):
        return run("dpkg", "--purge", "--force-unsafe-io", *self.files)

    def changed(self, name, change):
        """The package, unpacked, changed and packed again: its file."""
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.work))
        run("dpkg-deb", "--raw-extract", self.files[name], folder / "x")
        change(folder / "x")
        file = folder / self.files[name].name
        run("dpkg-deb", "-Znone", "--build", folder / "x", file)
        shutil.rmtree(folder / "x")
        return file

    def later(self, names):
        """The same packages with a later version: their files."""

        def change(folder):
            control = folder / "DEBIAN/control"
            text = control.read_text()
            version = re.search(r"^Version: (.*)$", text, re.M)[1]
            control.write_text(text.replace(version, version + "+later"))

        return [self.changed(name, change) for name in names]


def apt(what, *words, **more):
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    options = ["--yes", "--no-install-recommends", "-o", "Dpkg::Options::=--force-unsafe-io"]
    return run("apt-get", *options, what, *words, env=environment, **more)


def enable():
    run(PROGRAM, "openssl", "enable", "--yes")
    run(PROGRAM, "nginx", "enable", "--yes")


def works():
    """nginx and programs with OpenSSL accept their configurations."""
    run("nginx", "-t", "-q")
    run("openssl", "dgst", "-sha256", "/etc/hostname" if os.path.exists("/etc/hostname") else "/etc/passwd")


SITE = """
server {
    listen 127.0.0.1:%d ssl;
    ssl_certificate /srv/site/site.pem;
    ssl_certificate_key /srv/site/site.key;
    location / { return 200 "hello\\n"; }
    %s
}
"""


def certificate():
    """A certificate for localhost, which clients trust, outside of the folders that are compared."""
    folder = pathlib.Path("/srv/site")
    if not folder.exists():
        folder.mkdir(parents=True)
        new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
        names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
        run(*new, *names, "-keyout", folder / "site.key", "-out", folder / "site.pem")
    return folder


def fetch(path="/"):
    """A page of the site, from a connection of its own whose certificate is verified."""
    context = ssl.create_default_context(cafile=certificate() / "site.pem")
    with socket.create_connection(("127.0.0.1", PORT), timeout=20) as plain:
        with context.wrap_socket(plain, server_hostname="localhost") as secure:
            secure.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            answer = http.client.HTTPResponse(secure)
            answer.begin()
            return answer.status, answer.read().decode()


@contextlib.contextmanager
def site(more=""):
    """An nginx with this machine's configuration and a site, as the system starts it; yields its master's number."""
    certificate()
    place = pathlib.Path("/etc/nginx/conf.d/site.conf")
    place.write_text(SITE % (PORT, more))
    try:
        run("/usr/sbin/nginx")  # By its whole name: a new binary is started by the name of the old one.
        try:
            yield int(pathlib.Path("/run/nginx.pid").read_text())
        finally:
            run("nginx", "-s", "stop")
            until(lambda: not pathlib.Path("/run/nginx.pid").exists(), "nginx ends")
    finally:
        place.unlink()


def until(true, what):
    for _ in range(300):
        if true():
            return
        time.sleep(0.1)
    raise AssertionError(f"not within 30 s: {what}")


def mapped(process):
    return pathlib.Path(f"/proc/{process}/maps").read_text()


STATUS = "location = /wattlock_status { wattlock_status; }"


def test_installing_changes_no_file_that_was_there_and_purging_leaves_none(packages):
    before = snapshot()
    packages.install()
    changed = differences(before, snapshot())
    theirs = [name for name, was, _ in changed if was is not None]
    assert not theirs, theirs
    configuration = [name for name, _, _ in changed if name.startswith("/etc/")]
    assert configuration == [str(LINK)], configuration
    works()
    enable()
    run("wattlock", "nginx", "check")
    with site(STATUS):
        assert fetch()[0] == 200
    packages.purge()
    assert not differences(before, snapshot()), differences(before, snapshot())


def test_the_module_is_idle_until_it_is_turned_on_and_then_makes_verified_handshakes(packages):
    packages.install()
    with site() as master:
        assert fetch() == (200, "hello\n")
        assert "ngx_http_wattlock_module.so" in mapped(master) and "ossl-modules/wattlock.so" not in mapped(master)
    enable()
    assert "load_module" not in NGINX_CONF.read_text(), "modules-enabled loads it already"
    assert "/ossl-modules/wattlock.so" in OPENSSL_CONF.read_text()
    with site(STATUS) as master:
        for _ in range(5):
            assert fetch() == (200, "hello\n")
        status = json.loads(fetch("/wattlock_status")[1])
        assert status["active"] is True and status["completed"] >= 5, status
        assert "/ossl-modules/wattlock.so" in mapped(master)
    packages.purge()


def test_programs_find_what_the_packages_put_beside_them(packages):
    packages.install()
    for program in ("wattlock", "wattlock-bench", "wattlock-lab"):
        run(program, "--version")
    assert "emulated" in run("wattlock", "--emulate", "dh8970", "engines")[1]
    assert "wattlock" in run("openssl", "list", "-providers", "-provider", "wattlock", "-provider", "default")[1]
    with tempfile.TemporaryDirectory() as folder:
        run("wattlock", "keygen", "-o", f"{folder}/key")
        pathlib.Path(folder, "text").write_text("text")
        run("wattlock", "seal", "-i", f"{folder}/key", "-o", f"{folder}/sealed", f"{folder}/text")
        run("wattlock", "open", "-i", f"{folder}/key", "-o", f"{folder}/opened", f"{folder}/sealed")
        assert pathlib.Path(folder, "opened").read_text() == "text"
    packages.purge()
    # Without the tools, the program says which package has emulated cards.
    packages.install(PROGRAM)
    assert TOOLS in refused("wattlock", "--emulate", "dh8970", "engines")
    packages.purge()


def test_removing_undoes_enable_and_then_nothing_names_what_is_gone(packages):
    before = [NGINX_CONF.read_bytes(), OPENSSL_CONF.read_bytes()]
    packages.install()
    enable()
    assert [NGINX_CONF.read_bytes(), OPENSSL_CONF.read_bytes()] != before
    apt("remove", *packages.files)
    assert [NGINX_CONF.read_bytes(), OPENSSL_CONF.read_bytes()] == before
    assert not LINK.is_symlink()
    works()
    with site():
        assert fetch()[0] == 200
    # Installed again after a removal, it is loaded and idle again.
    packages.install()
    assert LINK.is_symlink()
    works()
    packages.purge()


def test_nginx_alone_is_enabled_and_a_removal_undoes_that(packages):
    before, theirs = snapshot(), OPENSSL_CONF.read_bytes()
    packages.install()
    run(PROGRAM, "nginx", "enable", "--yes", "--hybrid")
    assert OPENSSL_CONF.read_bytes() == theirs, "another program has it"
    works()
    with site(STATUS):
        assert json.loads(fetch("/wattlock_status")[1])["active"] is True
    apt("remove", *packages.files)
    assert not pathlib.Path("/etc/wattlock").exists() and "wattlock" not in NGINX_CONF.read_text()
    works()
    packages.purge()
    assert not differences(before, snapshot()), differences(before, snapshot())


def test_removing_the_module_undoes_enable_even_if_nginx_refuses_its_configuration(packages):
    before = NGINX_CONF.read_bytes()
    packages.install()
    enable()
    wrong = pathlib.Path("/etc/nginx/conf.d/wrong.conf")
    wrong.write_text("no_such_directive on;\n")
    said = apt("remove", MODULE)[1]
    assert NGINX_CONF.read_bytes() == before, said
    wrong.unlink()
    works()
    for kept in NGINX_CONF.parent.glob("nginx.conf.before-wattlock*"):
        kept.unlink()
    packages.purge()


# A section may be opened again, and the last of two values counts.
BY_HAND = """[default]
openssl_conf = hand_init
[hand_init]
providers = hand_list
[hand_list]
default = hand_default
wattlock = by_hand
[hand_default]
activate = 1
[by_hand]
module = wattlock
activate = 1
"""


def test_lines_written_by_hand_are_named_and_left(packages):
    packages.install()
    enable()
    page = pathlib.Path("/etc/nginx/conf.d/page.conf")
    page.write_text("# wattlock on;\nserver {\n    listen 127.0.0.1:8081;\n    server_name wattlock a;\n    %s\n}\n" % STATUS)
    run("nginx", "-t", "-q")
    said = apt("remove", MODULE)[1]
    assert f"{page}:5:" in said and f"{page}:1:" not in said, said
    assert STATUS in page.read_text()
    assert "server_name" not in said, said
    page.unlink()
    works()
    run("wattlock", "openssl", "disable", "--yes")
    ours = OPENSSL_CONF.read_bytes()
    whole = str(next(pathlib.Path("/usr/lib").glob("*/ossl-modules/wattlock.so")))
    for module in ("wattlock", "wattlock.so", f'"{whole}"', whole):
        by_hand = ours + BY_HAND.replace("module = wattlock", f"module = {module}").encode()
        OPENSSL_CONF.write_bytes(by_hand)
        run("openssl", "dgst", "-sha256", OPENSSL_CONF)
        said = apt("remove", PROVIDER)[1]
        assert "by hand" in said and f"{OPENSSL_CONF}:" in said and f"module = {module}" in said, said
        assert OPENSSL_CONF.read_bytes() == by_hand
        works()
        OPENSSL_CONF.write_bytes(ours)
        packages.install(PROVIDER)
    packages.purge()


def test_a_module_that_is_loaded_already_keeps_the_package_out(packages):
    packages.install(PROGRAM, PROVIDER)
    module = packages.work / "ngx_http_wattlock_module.so"
    run("dpkg-deb", "--raw-extract", packages.files[MODULE], packages.work / "module")
    shutil.copy(packages.work / "module/usr/lib/nginx/modules/ngx_http_wattlock_module.so", module)
    before = NGINX_CONF.read_text()
    NGINX_CONF.write_text(f"load_module {module};\n{before}")
    works()
    said = packages.install(MODULE, good=False)[1]
    assert f"{NGINX_CONF}:1:" in said and "wattlock nginx disable" in said, said
    works()
    NGINX_CONF.write_text(before)
    packages.install(MODULE)
    works()
    packages.purge()


def test_apt_refuses_an_nginx_that_the_module_was_not_built_for(packages):
    packages.install()
    field = run("dpkg-query", "-W", "-f", "${Depends}", MODULE)[1]
    abi = re.search(r"nginx-abi-\S+?(?=,|$)", field)[0]
    assert abi in run("dpkg-query", "-W", "-f", "${Provides}", "nginx")[1]
    folder = packages.work / "nginx"
    (folder / "DEBIAN").mkdir(parents=True)
    (folder / "DEBIAN/control").write_text(
        "Package: nginx\nVersion: 99\nArchitecture: amd64\nMaintainer: nobody <nobody@example.org>\n"
        "Provides: nginx-abi-99\nDescription: another nginx\n"
    )
    run("dpkg-deb", "--build", folder, packages.work / "nginx.deb")
    said = refused("apt-get", "--simulate", "--no-remove", "install", packages.work / "nginx.deb")
    assert MODULE in said, said
    packages.purge()


# Each command of a script counts. dpkg, which started the script, is killed before the one whose number is in the file.
PLANTED = """#!/bin/bash
set -T
n=0
trap 'n=$((n + 1)); read -r at </srv/kill-at; if [ "$at" = "NAME:$n" ]; then kill -KILL $PPID $$; fi' DEBUG
"""


def planted(folder):
    name = re.search(r"^Package: (.*)$", (folder / "DEBIAN/control").read_text(), re.M)[1]
    for script in ("preinst", "postinst", "prerm", "postrm"):
        path = folder / "DEBIAN" / script
        if path.exists():
            text = path.read_text()
            assert text.startswith("#!/bin/sh\n")
            path.write_text(PLANTED.replace("NAME", f"{name}.{script}") + text.split("\n", 1)[1])


def test_dpkg_killed_at_any_command_of_a_script_leaves_a_configuration_that_works(packages):
    before = [NGINX_CONF.read_bytes(), OPENSSL_CONF.read_bytes()]
    kill_at = pathlib.Path("/srv/kill-at")
    kill_at.write_text("none\n")
    files = {name: packages.changed(name, planted) for name in (PROGRAM, PROVIDER, MODULE)}

    def dpkg(*words):
        return run("dpkg", "--force-unsafe-io", *words, good=False)

    def installed():
        status, said = dpkg("--install", *files.values())
        assert status == 0, said
        if not LINK.is_symlink():
            # dh_nginx takes a module whose link was lost between two commands for one that a person turned off.
            LINK.symlink_to("/usr/share/nginx/modules-available/mod-http-wattlock.conf")
        enable()

    def removed():
        status, said = dpkg("--remove", *files)
        assert status == 0, said

    # Script, what must be there before, and what runs it.
    cases = []
    for name in files:
        cases += [
            (name, "prerm", installed, ["--remove", name]),
            (name, "postrm", installed, ["--remove", name]),
            (name, "postrm", removed, ["--purge", name]),
            (name, "preinst", removed, ["--install", files[name]]),
            (name, "postinst", removed, ["--install", files[name]]),
            (name, "prerm", installed, ["--install", files[name]]),
            (name, "postinst", installed, ["--install", files[name]]),
            (name, "postrm", installed, ["--install", files[name]]),
            (name, "preinst", installed, ["--install", files[name]]),
        ]
    kills = 0
    for name, script, first, words in cases:
        if name != MODULE and words[0] == "--remove":
            words = ["--force-depends", *words]
        if name != PROGRAM and words[0] == "--install" and first is removed:
            words = [*words, *(files[other] for other in files if other != name)]
        if not pathlib.Path(f"/var/lib/dpkg/info/{name}.{script}").exists() and script != "preinst":
            first()
            if not pathlib.Path(f"/var/lib/dpkg/info/{name}.{script}").exists():
                continue
        number = 0
        while True:
            number += 1
            kill_at.write_text("none\n")
            first()
            kill_at.write_text(f"{name}.{script}:{number}\n")
            status, said = dpkg(*words)
            kill_at.write_text("none\n")
            if status != -signal.SIGKILL:
                assert status == 0, f"{name}.{script} {words}: {said}"
                break
            kills += 1
            try:
                works()
                assert number < 200, "a script of so many commands"
                # And whoever goes on comes to an end.
                dpkg("--configure", "--pending")
                works()
                status, said = dpkg(*words)
                assert status == 0, said
                works()
            except AssertionError as error:
                raise AssertionError(f"killed at {name}.{script}:{number} of {words}: {error}") from error
        dpkg("--install", *files.values())
    assert kills > 50, f"only {kills} kills"
    print(f"    {kills} kills")
    status, said = dpkg("--purge", *files)
    assert status == 0, said
    assert [NGINX_CONF.read_bytes(), OPENSSL_CONF.read_bytes()] == before
    kill_at.unlink()


@contextlib.contextmanager
def small(*folders):
    """A file system of its own over each folder, with what that has. Yields what leaves so many KiB of room in all of them,
    much for None. What comes behind it must leave the folders as they were."""
    mounted, made = [], [folder for folder in folders if not os.path.isdir(folder)]
    try:
        for folder in folders:
            os.makedirs(folder, exist_ok=True)
            with tempfile.TemporaryDirectory(dir="/srv") as there:
                run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", there)
                try:
                    run("cp", "-a", f"{folder}/.", there)
                    run("mount", "--bind", there, folder)
                    mounted.append(folder)
                finally:
                    run("umount", there)

        def leave(kib):
            for folder in mounted:
                used = int(run("du", "-sk", folder)[1].split()[0])
                run("mount", "-o", f"remount,size={used + kib if kib is not None else 1 << 20}k", folder)

        yield leave
    finally:
        for folder in reversed(mounted):
            run("umount", folder)
        for folder in made:
            os.removedirs(folder)


def nginx_alone(what="enable", *more, **how):
    return run(PROGRAM, "nginx", what, "--yes", *more, **how)


def handled():
    """Whether Wattlock makes the site's handshakes, with a certificate that is verified."""
    status, page = fetch("/wattlock_status")
    return status == 200 and json.loads(page)["active"] is True


def test_what_is_promised_to_be_there_is_and_no_unit_is_enabled(packages):
    packages.install()
    listed = {name: run("dpkg", "--listfiles", name)[1].splitlines() for name in packages.files}
    for end in (
        "/usr/bin/wattlock",
        "/usr/share/man/man1/wattlock.1.gz",
        "/usr/share/man/man1/wattlock-nginx.1.gz",
        "/usr/share/bash-completion/completions/wattlock",
        "/usr/share/zsh/vendor-completions/_wattlock",
        "/usr/share/fish/vendor_completions.d/wattlock.fish",
        "recover.py",
        "/components.cdx.json",
        "/wattlock-exporter.service",
        "/wattlock@.service",
    ):
        found = [path for path in listed[PROGRAM] if path.endswith(end)]
        assert found and all(os.path.getsize(path) for path in found), f"{end} is not in {PROGRAM}"
    assert "/usr/share/man/man1/wattlock.1.gz" in run("man", "-w", "wattlock")[1]
    assert any("/examples/" in path for path in listed[PROGRAM]), "examples"
    assert any(path.endswith("/wattlock-emulated") for path in listed[TOOLS]), "the program with emulated cards"
    assert not [path for path in listed[PROGRAM] + listed[PROVIDER] if "emulated" in path]
    wanted = [str(path) for path in pathlib.Path("/etc/systemd").rglob("*wattlock*")]
    assert not wanted, wanted
    if BRIDGE in packages.files:
        assert "bridge" in run("wattlock", "stream", "bridge", "--help")[1]
    packages.purge()


def test_a_new_nginx_that_the_module_does_not_fit_starts_without_it(packages):
    """dpkg replaces /usr/sbin/nginx by one of another build: a module's signature is compared by nginx."""
    packages.install(PROGRAM, PROVIDER, MODULE)
    nginx_alone("enable", "--hybrid")
    name = run("dpkg-query", "-S", "/usr/sbin/nginx")[1].split(":")[0]
    theirs = packages.work / "theirs"
    for path in run("dpkg", "--listfiles", name)[1].splitlines():
        to = pathlib.Path(f"{theirs}{path}")
        if os.path.isdir(path) and not os.path.islink(path):
            to.mkdir(parents=True, exist_ok=True)
        else:
            shutil.copy2(path, to, follow_symlinks=False)
    (theirs / "DEBIAN").mkdir()
    for script in ("preinst", "postinst", "prerm", "postrm", "conffiles", "triggers"):
        kept = pathlib.Path(f"/var/lib/dpkg/info/{name}.{script}")
        if kept.exists():
            shutil.copy2(kept, theirs / "DEBIAN" / script)
    fields = run("dpkg-query", "--status", name)[1]
    fields = re.sub(r"^(Status|Conffiles):.*\n( .*\n)*", "", fields, flags=re.M)
    binary = theirs / "usr/sbin/nginx"
    signature = re.search(rb"8,4,8,[01]{30,}", binary.read_bytes())[0]
    files = {}
    for version, bits in (("+1", b"0" * (len(signature) - 6)), ("+2", signature[6:])):
        binary.write_bytes(binary.read_bytes().replace(signature, b"8,4,8," + bits) if version == "+1" else
                           pathlib.Path("/usr/sbin/nginx").read_bytes())
        control = re.sub(r"^Version: (.*)$", rf"Version: \1{version}", fields, flags=re.M)
        (theirs / "DEBIAN/control").write_text(control)
        files[version] = packages.work / f"nginx{version}.deb"
        run("dpkg-deb", "-Znone", "--build", theirs, files[version])
    before = NGINX_CONF.read_bytes()
    try:
        said = run("dpkg", "--force-unsafe-io", "--install", files["+1"])[1]
        assert "nginx starts without Wattlock" in said, said
        works()
        with site():
            assert fetch()[0] == 200
        # All at once: a package that is itself new has no trigger, and the module's makes its link anew.
        NGINX_CONF.write_bytes(before)
        LINK.with_name(LINK.name + ".removed").rename(LINK)
        later = packages.later((PROGRAM, PROVIDER, MODULE))
        said = run("dpkg", "--force-unsafe-io", "--install", files["+1"], *later)[1]
        assert "nginx starts without Wattlock" in said, said
        works()
    finally:
        run("dpkg", "--force-unsafe-io", "--install", files["+2"])
    packages.purge()
    works()


def test_three_commands_lead_from_files_to_a_verified_handshake(packages):
    """Its seconds are in docs/use/install.md. The site runs before, and restarts with Debian's init script."""
    with site(STATUS.replace("location", "# location")):
        begin = time.monotonic()
        packages.install(PROGRAM, PROVIDER, MODULE)
        installed = time.monotonic()
        pathlib.Path("/etc/nginx/conf.d/site.conf").write_text(SITE % (PORT, STATUS))
        nginx_alone("enable", "--restart")
        assert handled()
        print(f"    {installed - begin:.1f} s to install, {time.monotonic() - begin:.1f} s to the handshake")
    packages.purge()


def test_a_disk_that_fills_while_packages_are_unpacked_leaves_what_works(packages):
    names = (PROGRAM, PROVIDER, MODULE)
    folders = [next(pathlib.Path("/usr/lib").glob("*/ossl-modules")), pathlib.Path("/usr/lib/nginx/modules")]
    before = snapshot()
    for folder in folders:
        with small(folder) as leave:
            # The first time there is nothing to go back to.
            leave(8)
            status, said = packages.install(*names, good=False)
            assert status != 0 and "No space left on device" in said, said
            works()
            leave(None)
            apt("install", "--fix-broken")
            packages.install(*names)
            nginx_alone()
            with site(STATUS):
                assert handled()
                leave(8)
                status, said = apt("install", *map(str, packages.later(names)), good=False)
                assert status != 0 and "No space left on device" in said, said
                works()
                assert handled()
                run("nginx", "-s", "reload")
                until(handled, "a handshake of the old parts")
                leave(None)
                apt("install", "--fix-broken")
                apt("install", *map(str, packages.later(names)))
                assert handled()
            packages.purge()
        assert not differences(before, snapshot()), differences(before, snapshot())


def test_a_full_disk_where_configurations_are_changes_none_of_them(packages):
    packages.install(PROGRAM, PROVIDER, MODULE)
    module = pathlib.Path("/usr/lib/nginx/modules/ngx_http_wattlock_module.so")
    kept = module.read_bytes()
    for folder in ("/etc/nginx", "/etc/ssl", "/etc/default"):
        with small(folder) as leave:
            before = snapshot()
            for words in (["nginx"], ["openssl"]):
                leave(0)
                status, said = run(PROGRAM, *words, "enable", "--yes", good=False)
                works()
                assert (status == 0) != ("No space left on device" in said), said
                leave(None)
                run(PROGRAM, *words, "disable", "--yes", good=status == 0)
                assert not differences(before, snapshot()), (words, said, differences(before, snapshot()))
            # The guard says what it cannot do, and does it when there is room.
            nginx_alone()
            module.write_bytes(b"")
            leave(0)
            said = run(PROGRAM, "nginx", "guard")[1]
            assert folder != "/etc/nginx" or "No space left on device" in said, said
            leave(None)
            run(PROGRAM, "nginx", "guard")
            works()
            module.write_bytes(kept)
            removed = LINK.with_name(LINK.name + ".removed")
            if removed.is_symlink():
                removed.rename(LINK)
            nginx_alone("disable")
            assert not differences(before, snapshot()), differences(before, snapshot())
    packages.purge()


def answered(words, meanwhile):
    """Runs a command that asks at its terminal; `yes` is the answer, after something else has happened. Its status and output."""
    process, terminal = pty.fork()
    if process == 0:
        os.execvp(words[0], words)
    said, asked = b"", False
    with open(terminal, "r+b", buffering=0) as talk:
        while True:
            try:
                more = talk.read(4096)
            except OSError:  # EIO is the end of a terminal.
                more = b""
            if not more:
                break
            said += more
            if not asked and b"1 or 2: " in said:
                asked = True
                meanwhile()
                talk.write(b"yes\n")
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    assert asked, said
    return status, said.decode()


def test_an_openssl_cnf_that_its_owner_replaces_meanwhile_keeps_what_the_owner_wrote(packages):
    packages.install(PROGRAM, PROVIDER, MODULE)
    theirs = OPENSSL_CONF.read_bytes()
    new = theirs + b"\n[their_section]\ntheirs = 1\n"

    def replaced():
        other = OPENSSL_CONF.with_name("openssl.cnf.new")
        other.write_bytes(new)
        other.replace(OPENSSL_CONF)

    for program, what in (("openssl", "enable"), ("openssl", "disable"), ("nginx", "enable"), ("nginx", "disable")):
        if what == "disable":
            run(PROGRAM, program, "enable", "--yes")
        status, said = answered([PROGRAM, program, what], replaced)
        works()
        assert b"their_section" in OPENSSL_CONF.read_bytes(), said
        if program == "openssl":
            assert status != 0 and "meanwhile" in said and OPENSSL_CONF.read_bytes() == new, said
        else:
            assert OPENSSL_CONF.read_bytes() == new, said
        # And what an owner replaced while it was enabled is no mistake of anybody's.
        run(PROGRAM, program, "enable", "--yes")
        replaced()
        works()
        run(PROGRAM, program, "disable", "--yes")
        assert OPENSSL_CONF.read_bytes() == new
        OPENSSL_CONF.write_bytes(theirs)
    nginx_alone()
    replaced()
    apt("remove", PROVIDER)
    works()
    assert OPENSSL_CONF.read_bytes() == new
    OPENSSL_CONF.write_bytes(theirs)
    packages.purge()


def test_an_nginx_that_was_broken_before_is_no_worse_and_its_line_is_named(packages):
    before = snapshot()
    wrong = pathlib.Path("/etc/nginx/conf.d/wrong.conf")
    wrong.write_text("no_such_directive on;\n")
    packages.install(PROGRAM, PROVIDER, MODULE)
    with_it = snapshot()
    status, said = nginx_alone(good=False)
    assert status != 0 and f"{wrong}:1" in said, said
    assert not differences(with_it, snapshot()), differences(with_it, snapshot())
    run(PROGRAM, "nginx", "guard")
    assert not differences(with_it, snapshot()), differences(with_it, snapshot())
    assert "no_such_directive" in refused("nginx", "-t")
    packages.purge()
    wrong.unlink()
    works()
    assert not differences(before, snapshot()), differences(before, snapshot())


def test_two_versions_side_by_side_and_either_goes_first(packages):
    before = snapshot()
    place, local = pathlib.Path("/usr/local/lib/wattlock"), pathlib.Path("/usr/local/bin/wattlock")
    parts = {
        local: "/usr/bin/wattlock",
        place / "libwattlock_provider.so": next(pathlib.Path("/usr/lib").glob("*/ossl-modules")) / "wattlock.so",
        place / "ngx_http_wattlock_module.so": "/usr/lib/nginx/modules/ngx_http_wattlock_module.so",
    }

    def built():
        place.mkdir()
        for to, what in parts.items():
            shutil.copy(what, to)

    def gone():
        for one in parts:
            one.unlink()
        place.rmdir()

    # The other is enabled, and the packages go.
    packages.install(PROGRAM, PROVIDER, MODULE)
    built()
    run(local, "nginx", "enable", "--yes", "--provider", place / "libwattlock_provider.so")
    works()
    with site(STATUS) as master:
        assert handled() and str(place) in mapped(master)
    run("dpkg", "--remove", MODULE, PROVIDER, PROGRAM)
    works()
    run(local, "nginx", "enable", "--yes")
    works()
    with site(STATUS):
        assert handled()
    # The packages' module is loaded by a file of its own: both would be one too many, and dpkg says so.
    status, said = packages.install(PROGRAM, PROVIDER, MODULE, good=False)
    assert status != 0 and "wattlock nginx disable" in said, said
    works()
    run(local, "nginx", "disable", "--yes")
    apt("install", "--fix-broken")
    packages.install(PROGRAM, PROVIDER, MODULE)
    # The packages' is enabled, and the other goes.
    run("/usr/bin/wattlock", "nginx", "enable", "--yes")
    gone()
    works()
    with site(STATUS):
        assert handled()
    packages.purge()
    assert not differences(before, snapshot()), differences(before, snapshot())


def test_a_provider_that_is_replaced_under_running_programs_serves_on(packages):
    packages.install(PROGRAM, PROVIDER, MODULE)
    run(PROGRAM, "openssl", "enable", "--yes")
    folder = certificate()
    words = ["openssl", "s_server", "-accept", f"127.0.0.1:{PORT}", "-www", "-quiet"]
    server = subprocess.Popen(
        [*words, "-cert", folder / "site.pem", "-key", folder / "site.key"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until(lambda: listens(PORT), "a server")
        assert fetch()[0] == 200 and "/ossl-modules/wattlock.so" in mapped(server.pid)
        said = apt("install", *map(str, packages.later((PROGRAM, PROVIDER, MODULE))))[1]
        assert "keep the former provider until they are restarted" in said, said
        assert "/ossl-modules/wattlock.so (deleted)" in mapped(server.pid), "the old one is still in use"
        assert fetch()[0] == 200
        works()
        run("dpkg", "--remove", MODULE, PROVIDER)
        assert fetch()[0] == 200
        works()
        assert server.poll() is None
    finally:
        server.kill()
        server.wait()
    packages.purge()


def listens(port):
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def test_an_update_under_64_connections_fails_no_request(packages):
    packages.install(PROGRAM, PROVIDER, MODULE)
    enable()

    files = packages.later((PROGRAM, PROVIDER, MODULE))
    counts, failures, ended = [0] * 64, [], threading.Event()

    def client(number):
        while not ended.is_set():
            try:
                assert fetch() == (200, "hello\n")
                counts[number] += 1
            except Exception as error:  # noqa: BLE001, whatever it is, it is a request that failed
                failures.append(repr(error))

    with site(STATUS) as master:
        clients = [threading.Thread(target=client, args=(number,)) for number in range(64)]
        for one in clients:
            one.start()
        try:
            until(lambda: all(counts), "each client has had an answer")
            apt("install", *map(str, files))
            assert "later" in run("dpkg-query", "-W", "-f", "${Version}", MODULE)[1]
            during = sum(counts)
            # What the trigger of Debian's nginx does, and then what a new provider takes.
            run("nginx", "-s", "reload")
            answered = [one + 2 for one in counts]
            until(lambda: all(one >= least for one, least in zip(counts, answered)), "answers after the reload")
            os.kill(master, signal.SIGUSR2)
            until(pathlib.Path("/run/nginx.pid.oldbin").exists, "a new binary")
            until(lambda: pathlib.Path("/run/nginx.pid").exists(), "its number")
            time.sleep(1)
            os.kill(master, signal.SIGQUIT)
            answered = [one + 2 for one in counts]
            until(lambda: all(one >= least for one, least in zip(counts, answered)), "answers of the new binary")
            until(lambda: not pathlib.Path("/run/nginx.pid.oldbin").exists(), "the old one ends")
            status = json.loads(fetch("/wattlock_status")[1])
        finally:
            ended.set()
            for one in clients:
                one.join()
        assert status["active"] is True, status
    assert not failures, f"{len(failures)} of {sum(counts)}: {failures[:3]}"
    print(f"    {sum(counts)} requests, {during} until the update was done")
    run("dpkg", "--purge", *packages.files)


def main(words):
    packages = Packages(words[0])
    wanted = words[1:]
    tests = [(name, one) for name, one in globals().items() if name.startswith("test_")]
    passed, failed = 0, 0
    etc = pathlib.Path("/srv/etc-before")
    run("cp", "-a", "/etc", etc)
    for name, test in tests:
        if wanted and not any(part in name for part in wanted):
            continue
        begin = time.monotonic()
        try:
            test(packages)
            passed += 1
            told = "ok"
        except Exception:  # noqa: BLE001, the others run all the same
            traceback.print_exc()
            failed += 1
            told = "FAILED"
            run("dpkg", "--purge", "--force-all", *packages.files, good=False)
            restored(etc)
        print(f"{name.removeprefix('test_').replace('_', ' ')}: {told} ({time.monotonic() - begin:.0f} s)", flush=True)
    shutil.rmtree(packages.work)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__.strip())
    sys.exit(main(sys.argv[1:]))
