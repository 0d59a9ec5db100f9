#!/usr/bin/env python3
"""An OCI image of one layer from a folder with a root of Debian, without a daemon: an archive that `skopeo`, `podman load`
and `docker load` read. Standard library only; the same root gives the same bytes.

image.py ROOT OUTPUT NAME EPOCH         EPOCH: no file's time is later (SOURCE_DATE_EPOCH)
image.py unpack IMAGE FOLDER            the layer's files again, for tests; each blob is compared with its digest
"""

import datetime
import gzip
import hashlib
import io
import json
import os
import pathlib
import sys
import tarfile
import tempfile

# What is of the machine that builds, or is made anew: how it reaches its mirrors, its authorities, caches and records of
# times. Folders stay, empty.
LEFT_OUT_BELOW = [
    "dev", "proc", "root", "run", "srv", "sys", "tmp", "usr/local/share/ca-certificates", "var/cache", "var/lib/apt",
    "var/log", "var/tmp",
]  # fmt: skip
LEFT_OUT = {
    "etc/apt/apt.conf.d/99mmdebstrap", "etc/apt/sources.list", "etc/hostname", "etc/machine-id", "etc/pip.conf",
    "etc/resolv.conf", "etc/ssl/certs/ca-certificates.crt", "usr/sbin/policy-rc.d", "var/lib/dpkg/lock",
    "var/lib/dpkg/lock-frontend", "var/lib/dpkg/triggers/Lock",
}  # fmt: skip
# Folders that programs expect among those.
NEEDED = {"var/cache/nginx": 0o755, "var/log/nginx": 0o755}
# nginx logs where whoever runs a container looks.
LINKS = {"var/log/nginx/access.log": "/dev/stdout", "var/log/nginx/error.log": "/dev/stderr"}
OCI = "application/vnd.oci.image"


def kept(name):
    return name not in LEFT_OUT and not any(name.startswith(folder + "/") for folder in LEFT_OUT_BELOW)


def layer(root, epoch, out):
    """The tar of a root, in one order, with no times but those before `epoch`."""
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        names = []
        for folder, folders, files in os.walk(root):
            folders.sort()
            names += [os.path.relpath(os.path.join(folder, one), root) for one in folders + files]
        for name in sorted(filter(kept, names)):
            one = tar.gettarinfo(os.path.join(root, name), arcname=name)
            if one is None:
                continue  # A socket.
            one.uname = one.gname = ""
            one.mtime = min(int(one.mtime), epoch)
            with open(os.path.join(root, name), "rb") if one.isreg() else io.BytesIO() as file:
                tar.addfile(one, file if one.isreg() else None)
        for name, mode in NEEDED.items():
            one = tarfile.TarInfo(name)
            one.type, one.mode, one.mtime = tarfile.DIRTYPE, mode, epoch
            tar.addfile(one)
        for name, target in LINKS.items():
            one = tarfile.TarInfo(name)
            one.type, one.linkname, one.mtime = tarfile.SYMTYPE, target, epoch
            tar.addfile(one)


def build(root, output, name, epoch):
    blobs = {}

    def blob(data, kind):
        digest = hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return {"mediaType": f"{OCI}.{kind}", "digest": f"sha256:{digest}", "size": len(data)}

    def text(value):
        return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()

    with tempfile.TemporaryFile() as plain:
        layer(root, epoch, plain)
        plain.seek(0)
        data = plain.read()
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as file:
        file.write(data)
    made = datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc)
    configuration = {
        "created": made.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "Cmd": ["/usr/sbin/nginx", "-g", "daemon off;"],
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "ExposedPorts": {"80/tcp": {}, "443/tcp": {}},
            "StopSignal": "SIGQUIT",
        },
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(data).hexdigest()]},
        "history": [{"created": made.strftime("%Y-%m-%dT%H:%M:%SZ"), "created_by": "scripts/release/image.py"}],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{OCI}.manifest.v1+json",
        "config": blob(text(configuration), "config.v1+json"),
        "layers": [blob(packed.getvalue(), "layer.v1.tar+gzip")],
    }
    named = blob(text(manifest), "manifest.v1+json") | {"annotations": {"org.opencontainers.image.ref.name": name}}
    index = {"schemaVersion": 2, "mediaType": f"{OCI}.index.v1+json", "manifests": [named]}
    files = {"oci-layout": text({"imageLayoutVersion": "1.0.0"}), "index.json": text(index)}
    files |= {f"blobs/sha256/{digest}": data for digest, data in blobs.items()}
    with tarfile.open(output, "w", format=tarfile.GNU_FORMAT) as tar:
        for path, data in sorted(files.items()):
            one = tarfile.TarInfo(path)
            one.size, one.mtime, one.mode = len(data), epoch, 0o644
            tar.addfile(one, io.BytesIO(data))
    print(f"{output}: {named['digest']}, {len(packed.getvalue()) / 1e6:.1f} MB packed, {len(data) / 1e6:.1f} MB")


def unpack(image, folder):
    with tarfile.open(image) as tar:
        files = {one.name: tar.extractfile(one).read() for one in tar if one.isreg()}

    def blob(about):
        data = files[f"blobs/sha256/{about['digest'].removeprefix('sha256:')}"]
        if len(data) != about["size"] or "sha256:" + hashlib.sha256(data).hexdigest() != about["digest"]:
            sys.exit(f"image: {about['digest']} is not what it is called")
        return data

    (named,) = json.loads(files["index.json"])["manifests"]
    manifest = json.loads(blob(named))
    configuration = json.loads(blob(manifest["config"]))
    (packed,) = manifest["layers"]
    plain = gzip.decompress(blob(packed))
    if configuration["rootfs"]["diff_ids"] != ["sha256:" + hashlib.sha256(plain).hexdigest()]:
        sys.exit("image: the layer is not the one that the configuration names")
    pathlib.Path(folder).mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
        # It is a whole system: absolute links are its own.
        tar.extraction_filter = lambda member, path: member
        tar.extractall(folder, numeric_owner=True)
    print(" ".join(configuration["config"]["Cmd"]))


def main(words):
    match words:
        case ["unpack", image, folder]:
            unpack(image, folder)
        case [root, output, name, epoch]:
            build(root, output, name, int(epoch))
        case _:
            sys.exit(__doc__.strip())


if __name__ == "__main__":
    main(sys.argv[1:])
