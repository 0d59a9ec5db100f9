#!/usr/bin/env python3
"""What the binaries are made of, from the lock files. Standard library and cargo only; the same input gives the same bytes.

sbom.py list              a CycloneDX list (JSON) of all libraries of the programs, on standard output
sbom.py sections FOLDER   writes into each binary of ours under FOLDER which libraries are in it: the section .dep-v0 in
                          the format of cargo-auditable, which `cargo audit bin`, trivy, syft and others read
sbom.py show FILE         prints that section of a binary
"""

import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import tomllib
import zlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
MACHINE = "x86_64-unknown-linux-gnu"
WORKSPACES = [ROOT / "Cargo.toml", ROOT / "crates/wattlock-bridge/Cargo.toml"]
# Which package a binary is built from.
BINARIES = {
    "wattlock": "wattlock-cli",
    "wattlock-bench": "wattlock-bench",
    "wattlock-lab": "wattlock-lab",
    "wattlock-emulated": "wattlock-emulated",
    "wattlock-bridge": "wattlock-bridge",
    "wattlock.so": "wattlock-provider",
    "libwattlock_provider.so": "wattlock-provider",
    "libwattlock_emulated.so": "wattlock-emulated",
}
SECTION = ".dep-v0"


def cargo(*words):
    return subprocess.run(["cargo", *words, "--locked"], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def manifest_of(package):
    return WORKSPACES[package == "wattlock-bridge"]


def tree(package, edges):
    """Packages beneath one, as (name, version, whether it is of a registry), and who depends on whom."""
    words = ["--manifest-path", str(manifest_of(package)), "-p", package, "--target", MACHINE, "--edges", edges]
    lines = cargo("tree", *words, "--prefix", "depth", "--format", " {p}").splitlines()
    packages, above = {}, []
    for line in lines:
        found = re.match(r"(\d+) (\S+) v(\S+)(.*)", line)
        if not found:
            continue  # A heading such as [build-dependencies].
        depth, name, version, rest = int(found[1]), found[2], found[3], found[4]
        one = (name, version, " (/" not in rest)
        packages.setdefault(one, set())
        del above[depth:]
        if above:
            packages[above[-1]].add(one)
        above.append(one)
    return packages


def audited(package):
    """The list of a binary, in cargo-auditable's format: https://github.com/rust-secure-code/cargo-auditable."""
    linked = set(tree(package, "normal,no-proc-macro"))
    everything = tree(package, "normal,build")
    order = sorted(everything)
    entries = []
    for one in order:
        name, version, registry = one
        entry = {"name": name, "version": version, "source": "crates.io" if registry else "local"}
        if one not in linked:
            entry["kind"] = "build"
        if everything[one]:
            entry["dependencies"] = sorted(order.index(other) for other in everything[one])
        if name == package:
            entry["root"] = True
        entries.append(entry)
    return json.dumps({"packages": entries}, separators=(",", ":")).encode()


def sections(folder):
    lists, done = {}, 0
    for path in sorted(pathlib.Path(folder).rglob("*")):
        package = BINARIES.get(path.name)
        if package is None or path.is_symlink() or not path.is_file() or path.read_bytes()[:4] != b"\x7fELF":
            continue
        if package not in lists:
            lists[package] = zlib.compress(audited(package), 9)
        with tempfile.NamedTemporaryFile() as section:
            section.write(lists[package])
            section.flush()
            subprocess.run(
                ["objcopy", "--remove-section", SECTION, "--add-section", f"{SECTION}={section.name}", path], check=True
            )
        done += 1
    if done == 0:
        sys.exit(f"sbom: no binary of ours is in {folder}")


def show(path):
    with tempfile.NamedTemporaryFile() as section:
        subprocess.run(
            ["objcopy", "--dump-section", f"{SECTION}={section.name}", path, "/dev/null"], check=True
        )
        print(json.dumps(json.loads(zlib.decompress(pathlib.Path(section.name).read_bytes())), indent=1))


def purl(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package, checksums):
    one = {"type": "library", "bom-ref": purl(package), "name": package["name"], "version": package["version"]}
    checksum = checksums.get((package["name"], package["version"]))
    if checksum:
        one["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    if package.get("license"):
        # Cargo's older form of "or".
        one["licenses"] = [{"expression": re.sub(r"\s*/\s*", " OR ", package["license"])}]
    one["purl"] = purl(package)
    return one


def listed():
    components, dependencies = {}, {}
    for manifest in WORKSPACES:
        words = ["--manifest-path", str(manifest), "--filter-platform", MACHINE, "--format-version", "1"]
        metadata = json.loads(cargo("metadata", *words))
        lock = tomllib.loads((manifest.parent / "Cargo.lock").read_text())
        checksums = {(one["name"], one["version"]): one.get("checksum") for one in lock["package"]}
        packages = {package["id"]: package for package in metadata["packages"]}
        nodes = {node["id"]: node["deps"] for node in metadata["resolve"]["nodes"]}
        # Tests' libraries are in no binary.
        left, seen = list(metadata["workspace_members"]), set()
        while left:
            at = left.pop()
            if at in seen:
                continue
            seen.add(at)
            below = [d["pkg"] for d in nodes[at] if any(kind["kind"] != "dev" for kind in d["dep_kinds"])]
            left += below
            ref = purl(packages[at])
            components[ref] = component(packages[at], checksums)
            dependencies.setdefault(ref, set()).update(purl(packages[one]) for one in below)
    with (ROOT / "Cargo.toml").open("rb") as file:
        version = tomllib.load(file)["workspace"]["package"]["version"]
    made = datetime.datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", 0)), datetime.timezone.utc)
    itself = {"type": "application", "bom-ref": "wattlock", "name": "wattlock", "version": version}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"timestamp": made.strftime("%Y-%m-%dT%H:%M:%SZ"), "component": itself},
        "components": [components[ref] for ref in sorted(components)],
        "dependencies": [{"ref": ref, "dependsOn": sorted(dependencies[ref])} for ref in sorted(dependencies)],
    }


def main(words):
    match words:
        case ["list"]:
            print(json.dumps(listed(), indent=1))
        case ["sections", folder]:
            sections(folder)
        case ["show", path]:
            show(path)
        case _:
            sys.exit(__doc__.strip())


if __name__ == "__main__":
    main(sys.argv[1:])
