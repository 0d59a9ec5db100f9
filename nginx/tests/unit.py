#!/usr/bin/env python3
"""Starts a service as its unit says, where systemd is not process 1: the environment, then each ExecCondition,
then ExecStartPre, then ExecStart, in the order that systemd.service(5) and systemd.unit(5) give. No sandboxing, no dependencies.

    nginx/tests/unit.py NAME       exit status: that of the first command that fails, 0 if the service has started
"""

import pathlib
import shlex
import string
import subprocess
import sys

FOLDERS = ["/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"]


def files(name):
    """The unit's file, and its drop-ins in the order of their names."""
    units = [pathlib.Path(folder, f"{name}.service") for folder in FOLDERS]
    yield next(unit for unit in units if unit.exists())
    dropins = {}
    for folder in FOLDERS:
        for path in pathlib.Path(folder, f"{name}.service.d").glob("*.conf"):
            dropins.setdefault(path.name, path)
    yield from (dropins[key] for key in sorted(dropins))


def read(name):
    """The values of each key of the unit's [Service]; an empty one forgets those before it."""
    values = {}
    for file in files(name):
        section = None
        for line in file.read_text().replace("\\\n", " ").splitlines():
            line = line.strip()
            if line.startswith("["):
                section = line
            elif section == "[Service]" and "=" in line and line[0] not in "#;":
                key, value = (part.strip() for part in line.split("=", 1))
                values.setdefault(key, []).append(value)
                if not value:
                    values[key] = []
    return values


def main():
    unit = read(sys.argv[1])
    environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    for line in unit.get("Environment", []):
        environment.update(word.split("=", 1) for word in shlex.split(line))
    for line in unit.get("EnvironmentFile", []):
        file = pathlib.Path(line.lstrip("-"))
        for setting in file.read_text().splitlines() if file.exists() else []:
            if "=" in setting and not setting.startswith("#"):
                name, value = setting.split("=", 1)
                environment[name] = "".join(shlex.split(value))
    conditions = unit.get("ExecCondition", [])
    for line in conditions + unit.get("ExecStartPre", []) + unit["ExecStart"]:
        # What stands before a command: it may fail (-), or is more privileged than others (+).
        prefix = line[:len(line) - len(line.lstrip("-+"))]
        words = []
        for word in shlex.split(line.lstrip("-+")):
            value = string.Template(word).safe_substitute(environment)
            # A word that is a variable becomes as many as its value has.
            words += value.split() if word.startswith("$") else [value]
        try:
            status = subprocess.run(words, env=environment, stdin=subprocess.DEVNULL).returncode
        except OSError as error:
            print(f"{words[0]}: {error.strerror}", file=sys.stderr)
            status = 203
        if status != 0 and "-" not in prefix:
            if line in conditions and 0 < status < 255:
                sys.exit(0)
            sys.exit(f"{line}: {status}")


if __name__ == "__main__":
    main()
