#!/usr/bin/env python3
"""The files of examples/, systemd/ and .github/workflows are what the programs that read them take. Nothing is run.

    .venv/bin/python3 scripts/test/examples.py [PROGRAM]

compose.yaml and the workflows by their published schemas, Kubernetes' files by the API's own (no unknown key), units
and drop-ins by `systemd-analyze verify`, fstab by `findmnt --verify` and the program's own parser of mount options,
openssl.cnf and nginx's site by OpenSSL and `nginx -t` where provider and module were built. Every `wattlock ...` in any
of them is parsed by PROGRAM (target/debug/wattlock), which is asked for --help behind the line's own words. Workflows
call what this repository has, by pinned actions, with no right but to read.

A fault of each sort is then planted in a copy, and must be found. Parsers come from PyPI, by scripts/setup/setup.sh
test. What the machine lacks (systemd-analyze, findmnt, kubectl, nginx) is left out, with a line.
"""
import contextlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

try:
    import kubernetes_validate
    import yaml
    from check_jsonschema.builtin_schemas import get_builtin_schema
    from jsonschema.validators import validator_for
except ImportError as error:
    sys.exit(f"examples: {error.name} is missing: run scripts/setup/setup.sh test, and this by .venv/bin/python3")

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# Versions of Kubernetes: an old one that is in use, and the newest at the release.
KUBERNETES = ("1.31", "1.37")
# What `findmnt --verify` says of every file system whose mount helper is a program.
USUAL = ("is a directory or regular file", "wattlock seems unsupported by the current kernel",
         "cannot detect on-disk filesystem type")
SAID = set()


class Strict(yaml.SafeLoader):
    """Refuses a key that stands twice in a mapping, of which the last would win without a word."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if len(keys) != len(set(keys)):
            raise yaml.constructor.ConstructorError(None, None, "a key stands twice", node.start_mark)
        return super().construct_mapping(node, deep)


def left_out(what):
    if what not in SAID:
        SAID.add(what)
        print(f"skipped: examples: {what}")


def tool(name):
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def run(*words, **more):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, **more)


# YAML


def documents(path):
    return [one for one in yaml.load_all(path.read_text(), Strict) if one is not None]


def by_schema(name, document):
    """What a document is not, by a schema that check-jsonschema carries."""
    schema = get_builtin_schema(name)
    for error in validator_for(schema)(schema).iter_errors(document):
        place = "/".join(map(str, error.absolute_path))
        yield f"{place}: {error.message[:300]}"


def of_kubernetes(document):
    for version in KUBERNETES:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            yield f"Kubernetes {version}: {error}"[:300]


def of_kustomize(path):
    kubectl = tool("kubectl")
    if not kubectl:
        return left_out("what `kubectl kustomize` renders: no kubectl")
    made = run(kubectl, "kustomize", path.parent)
    if made.returncode:
        yield made.stderr.strip()
        return None
    for document in yaml.load_all(made.stdout, Strict):
        yield from of_kubernetes(document)


def containers(document):
    """Command lists of all containers in a document of compose or Kubernetes."""
    if isinstance(document, list):
        for one in document:
            yield from containers(one)
    elif isinstance(document, dict):
        if isinstance(document.get("image"), str):
            yield document["image"], [*document.get("command", []), *document.get("args", [])]
        for one in document.values():
            yield from containers(one)


def images(document, version):
    for image, _ in containers(document):
        if image != f"wattlock:{version}":
            yield f"image {image}, not wattlock:{version}"


def workflow(root, document):
    """What the schema does not ask of a workflow: least rights, pinned actions, and commands of this repository."""
    if document.get("permissions") != {"contents": "read"}:
        yield "permissions are not {contents: read}"
    targets = set(re.findall(r"^([a-z][\w-]*(?: [a-z][\w-]*)*):", (root / "Makefile").read_text(), re.M))
    targets = {name for names in targets for name in names.split()}
    for name, job in document.get("jobs", {}).items():
        if "permissions" in job:
            yield f"{name}: permissions of its own"
        if not isinstance(job.get("timeout-minutes"), int):
            yield f"{name}: no time limit"
        for step in job.get("steps", []):
            uses = step.get("uses")
            if uses and not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", uses):
                yield f"{name}: {uses} is not pinned by a commit"
            keeps = step.get("with", {}).get("persist-credentials") is not False
            if uses and uses.startswith("actions/checkout@") and keeps:
                yield f"{name}: checkout leaves its credentials"
            for line in filter(None, map(str.strip, step.get("run", "").splitlines())):
                if "${{" in line:
                    yield f"{name}: an expression in a command: {line}"
                words = line.split()
                if words[0] == "make":
                    wrong = [word for word in words[1:] if "=" not in word and word not in targets]
                    yield from (f"{name}: no target {word}" for word in wrong)
                elif words[0] == "apt-get":
                    pass
                elif not os.access(root / words[0], os.X_OK):
                    yield f"{name}: {words[0]} is neither make nor a program of this repository"


# Units and fstab


def verified(root, units):
    """What systemd says of units, with the drop-ins of examples/ where they belong, and programs where they are."""
    analyze = tool("systemd-analyze")
    if not analyze:
        return left_out("units: no systemd-analyze")
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        for path in units:
            to = place / path.name if path.suffix != ".conf" else place / path.parent.name / path.name
            to.parent.mkdir(exist_ok=True)
            # The program is not installed here.
            to.write_text(re.sub(r"/usr/(local/)?bin/wattlock", "/bin/true", path.read_text()))
        (place / "haproxy.service").write_text("[Service]\nExecStart=/bin/true\n")
        names = sorted(path for path in place.iterdir() if path.is_file())
        # An instance, not the template itself.
        names = [place / path.name.replace("@.", "@photos.") if "@." in path.name else path for path in names]
        done = run(analyze, "verify", "--man=no", "--generators=no", *names)
        for line in (done.stdout + done.stderr).splitlines():
            if line.strip():
                yield line.replace(f"{folder}/", "")
    return None


def words_of_units(path):
    """Command lines of a unit, as it would start them: with its variables, and without systemd's prefixes."""
    text = path.read_text()
    known = {"CREDENTIALS_DIRECTORY": "/run/credentials"}
    known |= dict(re.findall(r"^(\w+)=(.*)$", (ROOT / "examples/systemd/photos.env").read_text(), re.M))
    for line in re.findall(r"^Exec\w+=[-@:+!]*(.+)$", text.replace("\\\n", ""), re.M):
        line = re.sub(r"\$\{(\w+)\}", lambda match: known.get(match[1], match[0]), line)
        yield shlex.split(line.replace("%%", "%"))


def of_fstab(path, program):
    findmnt = tool("findmnt")
    lines = [line.split() for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
    for fields in lines:
        if len(fields) != 6 or fields[2] != "wattlock":
            yield f"not six fields of a volume: {' '.join(fields)}"
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        if findmnt:
            for fields in lines:
                for name in fields[:2]:
                    place.joinpath(name.lstrip("/")).mkdir(parents=True, exist_ok=True)
            table = place / "fstab"
            table.write_text(re.sub(r"^(/\S+\s+)(/)", rf"{folder}\1{folder}\2", path.read_text(), flags=re.M))
            done = run(findmnt, "--verify", "--tab-file", table)
            said = [line for line in (done.stdout + done.stderr).splitlines() if re.match(r"\s*\[[EW]\]", line)]
            yield from (line.strip() for line in said if not line.rstrip().split(" (")[0].endswith(USUAL))
            if done.returncode or "0 parse errors, 0 errors" not in done.stdout + done.stderr:
                yield f"findmnt: exit code {done.returncode}: {done.stdout}"
        else:
            left_out("fstab's form: no findmnt")
        # By the name by which mount(8) calls the program. 2 is a usage error; the folders are not there.
        helper = place / "mount.wattlock"
        helper.symlink_to(program)
        for fields in lines:
            done = run(helper, place / "no/volume", place / "no/folder", "-o", fields[3])
            if done.returncode in (0, 2):
                yield f"{fields[3]}: {done.stderr.strip()}"


# OpenSSL and nginx


def of_openssl(path, program):
    """By OpenSSL itself, with the provider beside the program."""
    provider = program.parent / "libwattlock_provider.so"
    if not provider.exists():
        return left_out("openssl.cnf: no provider beside the program")
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "wattlock.so").symlink_to(provider)
        more = {"OPENSSL_CONF": str(path), "OPENSSL_MODULES": folder, "WATTLOCK_TELEMETRY_DIR": folder}
        done = run("openssl", "list", "-providers", env=os.environ | more)
    if done.returncode or not re.search(r"^  wattlock\n(?:    .*\n)*    status: active$", done.stdout, re.M):
        yield f"the provider is not active: {done.stdout}{done.stderr}"


def of_nginx(path, program):
    """By `nginx -t`, with the module, and with files of this place in those of the example."""
    module, nginx = program.parents[1] / "nginx/ngx_http_wattlock_module.so", tool("nginx")
    if not nginx or not module.exists():
        return left_out("site.conf: no nginx, or no module in target/nginx")
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        run("openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
            "-subj", "/CN=a", "-keyout", place / "key", "-out", place / "pem")
        site = path.read_text().replace("listen 443 ssl", f"listen unix:{folder}/socket ssl")
        site = re.sub(r"/etc/ssl/certs/\S+\.pem", f"{folder}/pem", site)
        (place / "site.conf").write_text(re.sub(r"/etc/ssl/private/\S+\.key", f"{folder}/key", site))
        (place / "nginx.conf").write_text(f"load_module {module};\npid {folder}/pid;\nevents {{}}\nhttp {{\n"
                                          f"access_log off;\ninclude {folder}/site.conf;\n}}\n")
        done = run(nginx, "-t", "-e", "stderr", "-p", folder, "-c", place / "nginx.conf",
                   env=os.environ | {"WATTLOCK_TELEMETRY_DIR": folder})
    if done.returncode:
        yield done.stderr.strip()


# Command lines


def commands(words):
    """The program's command lines in a list of words: itself, or within a script of a shell."""
    if words and pathlib.PurePath(words[0]).name == "wattlock":
        yield words[1:]
    elif words[:1] and pathlib.PurePath(words[0]).name in ("sh", "bash") and len(words) > 2:
        for line in re.split(r"\n|;|\|+|&&", words[-1].replace("\\\n", " ")):
            with contextlib.suppress(ValueError):
                # Quotes that were not closed: `trap '...'` and the like are no command of ours.
                inner = shlex.split(line)
                if inner and pathlib.PurePath(inner[0]).name == "wattlock":
                    yield inner[1:]


def refused(program, words, whole=True):
    """What the program's own parser says of a line: --help ends it there, before anything is done. `whole`: the line
    has all that the usage asks for."""
    done = run(program, *words, "--help")
    if done.returncode:
        return done.stderr.strip().splitlines()[0]
    usage = re.search(r"^Usage: wattlock (.*)$", done.stdout, re.M)[1]
    named = [word for word in re.sub(r"\[[^\]]*\](\.\.\.)?|<[^>]*>(\.\.\.)?", "", usage).split()]
    if "<COMMAND>" in usage or list(words[:len(named)]) != named:
        return f"it is no whole command: {usage}"
    wanted = len(re.findall(r"(?<!\[)<[^>]+>", re.sub(r"\[[^\]]*\]", "", usage)))
    if not whole:
        return None
    # Options that take a value, by the help's own list.
    values = re.findall(r"^ +(-\w)?(?:, )?(--[\w-]+)? <", done.stdout, re.M)
    takes = {name for pair in values for name in pair if name}
    rest, given = list(words[len(named):]), 0
    while rest:
        word = rest.pop(0)
        if word in takes and rest:
            rest.pop(0)
        elif not word.startswith("-") or word == "-":
            given += 1
    return f"{given} of {wanted} words that it needs" if given < wanted else None


def lines_of(path, document=None):
    """Every command line of a file, and whether it is meant to be whole."""
    if path.suffix == ".yaml":
        for _, words in containers(document):
            yield from ((line, True) for line in commands(words))
    elif path.suffix in (".service", ".timer", ".conf"):
        for words in words_of_units(path):
            yield from ((line, True) for line in commands(words))
    # Those that a comment names.
    if path.suffix != ".md":
        for line in re.findall(r"`wattlock ([^`]*)`", path.read_text()):
            yield shlex.split(line.replace("...", "")), False


def problems(root, program):
    """Everything that is wrong in a tree, as lines."""
    manifest = (ROOT / "Cargo.toml").read_text()
    version = re.search(r'^\[workspace.package\]\n(?:.*\n)*?version = "(.*)"', manifest, re.M)[1]
    examples, found, units = root / "examples", [], []

    def check(path, what):
        found.extend(f"{path.relative_to(root)}: {line}" for line in what or [])

    for path in sorted([*examples.rglob("*"), *(root / "systemd").iterdir(), *(root / ".github").rglob("*.yml")]):
        if path.is_dir():
            continue
        loaded = []
        if path.suffix in (".yaml", ".yml"):
            try:
                loaded = documents(path)
            except yaml.YAMLError as error:
                check(path, [str(error).replace("\n", " ")])
                continue
            if not loaded:
                check(path, ["it is empty"])
        if path.suffix == ".yml":
            for document in loaded:
                # YAML 1.1 reads the word `on` as true.
                check(path, by_schema("vendor.github-workflows", json.loads(json.dumps(
                    {"on" if key is True else key: value for key, value in document.items()}))))
                check(path, workflow(root, document))
            continue
        if path.name == "compose.yaml":
            check(path, by_schema("vendor.compose-spec", loaded[0]))
        elif path.name == "kustomization.yaml":
            check(path, of_kustomize(path))
        elif path.suffix == ".yaml":
            for document in loaded:
                check(path, of_kubernetes(document))
        elif path.suffix in (".service", ".timer", ".conf") and path.parent.name != "nginx":
            units.append(path)
        elif path.name == "fstab":
            check(path, of_fstab(path, program))
        elif path.name == "openssl.cnf":
            check(path, of_openssl(path, program))
        elif path.name == "site.conf":
            check(path, of_nginx(path, program))
        # A list of files alone has nothing that could be run.
        if loaded and set(loaded[0]) != {"apiVersion", "kind", "resources"} and "# NOT RUN: " not in path.read_text():
            check(path, ["it does not say that it was not run"])
        check(path, images(loaded, version))
        for document in loaded or [None]:
            for words, whole in lines_of(path, document):
                COUNTED.add((path.name, tuple(words)))
                said = refused(program, words, whole)
                check(path, [f"wattlock {' '.join(words)}: {said}"] if said else [])
    check(examples / "systemd", verified(root, units))
    return found


COUNTED = set()
# A file, what stands there, what is put there, and words of what must be found.
PLANTED = (
    ("examples/compose.yaml", "cap_add:", "cap_ad:", "cap_ad"),
    ("examples/compose.yaml", "mount, --foreground", "mount, --foregrund", "--foregrund"),
    ("examples/compose.yaml", "image: wattlock:", "image: wattlock:9", "not wattlock:"),
    ("examples/compose.yaml", "NOT RUN", "RUN", "not run"),
    ("examples/kubernetes/nginx.yaml", "replicas: 2", "replicas: two", "replicas"),
    ("examples/kubernetes/nginx.yaml", "readinessProbe:", "readynessProbe:", "readynessProbe"),
    ("examples/kubernetes/nginx.yaml", "replicas: 2", "replicas: 2\n  replicas: 3", "twice"),
    ("examples/kubernetes/backup.yaml", "wattlock seal -R", "wattlock seal --recipient-list", "--recipient-list"),
    ("examples/kubernetes/volume/volume.yaml", "/srv/volume /srv/clear", "/srv/volume", "words that it needs"),
    ("examples/kubernetes/volume/volume.yaml", "medium: Memory", "medium: [Memory]", "medium"),
    ("examples/fstab", "allow_other", "allow_others", "allow_others"),
    ("examples/fstab", "idle=600  0  0", "idle=600 0", "six fields"),
    ("examples/openssl/openssl.cnf", "module = wattlock.so", "module = wattlock", "not active"),
    ("examples/nginx/site.conf", "wattlock on", "wattlock maybe", "wattlock"),
    ("examples/systemd/wattlock-backup.service", "Nice=10", "Niceness=10", "Niceness"),
    ("examples/systemd/wattlock-backup.timer", "*-*-* 03:00", "never", "never"),
    ("systemd/wattlock@.service", "-o ${OPTIONS}", "--option ${OPTIONS}", "--option"),
    ("systemd/wattlock-exporter.service", "UMask=0077", "UMask=0999", "mode value"),
    (".github/workflows/ci.yml", "contents: read", "contents: write", "permissions"),
    (".github/workflows/ci.yml", "runs-on:", "run-on:", "run-on"),
    (".github/workflows/release.yml", "make package", "make packages", "no target packages"),
    (".github/workflows/release.yml", "@", "@v4 #", "not pinned"),
)


def unable(name):
    """Whether a file's part was left out, so that no fault of it can be found."""
    parts = {"fstab": "fstab", "openssl.cnf": "openssl.cnf", "site.conf": "site.conf"}
    part = parts.get(pathlib.Path(name).name) or ("units" if name.endswith((".service", ".timer", ".conf")) else None)
    return part and any(said.startswith(part) for said in SAID)


def main():
    program = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "target/debug/wattlock").resolve()
    if not os.access(program, os.X_OK):
        sys.exit(f"examples: no program {program}: cargo build -p wattlock-cli")
    wrong = problems(ROOT, program)
    counted = len(COUNTED)
    if not wrong:
        with tempfile.TemporaryDirectory() as folder:
            for number, (name, there, put, words) in enumerate(PLANTED):
                tree = pathlib.Path(folder) / str(number)
                for part in ("examples", "systemd", ".github"):
                    # A timer wants its service.
                    keep = {ROOT / name, ROOT / "examples/systemd/wattlock-backup.service"}
                    for path in filter(keep.__contains__, (ROOT / part).rglob("*")):
                        (tree / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
                        shutil.copy(path, tree / path.relative_to(ROOT))
                    (tree / part).mkdir(parents=True, exist_ok=True)
                for part in ("Makefile", ".ci", "scripts"):
                    (tree / part).symlink_to(ROOT / part)
                text = (tree / name).read_text()
                if there not in text:
                    wrong.append(f"{name} has no {there!r}, in whose place a fault is planted")
                    continue
                (tree / name).write_text(text.replace(there, put, 1))
                said = problems(tree, program)
                if not unable(name) and not any(words in line for line in said):
                    wrong.append(f"a planted fault was not found: {name}: {put!r} for {there!r}; found: {said}")
    for line in wrong:
        print(line, file=sys.stderr)
    if not wrong:
        print(f"examples: {counted} command lines parsed, {len(PLANTED)} planted faults found; nothing was run")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
