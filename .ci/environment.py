"""The virtual environment of a checkout, what npm installed, and the compiled message path."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable

import packages
from steps import ROOT, Failure, quiet, say

VENV = os.path.normpath(os.path.join(ROOT, os.path.expanduser(os.environ.get("KINMQTT_VENV") or ".venv")))
"""A second environment beside .venv holds another Python: KINMQTT_VENV=.venv-3.13 python3.13 dev.py test"""
BIN = os.path.join(VENV, "bin")
PYTHON = os.path.join(BIN, "python")
STAMP = os.path.join(VENV, "kinmqtt-install.json")
REQUIREMENTS = {"run": "requirements.txt", "dev": "requirements-dev.txt"}
"""What pip installs: what a broker and compiling need, or everything."""
INTEROP = os.path.join(ROOT, "tests", "interop")
NPM_STAMP = os.path.join(INTEROP, "node_modules", "kinmqtt-install.json")
"""Beside what npm installed, which all environments share."""

COMPILED = {name: value for name, value in os.environ.items() if name != "KINMQTT_PURE"}
"""The environment of a process that takes the compiled message path where there is one."""


def read_stamp(path: str = STAMP) -> dict[str, str]:
    """Return what the last complete install wrote down, or nothing."""
    try:
        with open(path) as file:
            return dict(json.load(file))
    except (OSError, TypeError, ValueError):
        return {}


def write_stamp(stamp: dict[str, str], path: str = STAMP) -> None:
    """Write the stamp in one step, so that an interrupted run leaves the old one or the new one."""
    with open(path + ".new", "w") as file:
        json.dump(stamp, file, indent=1)
    os.replace(path + ".new", path)


def fingerprint(*paths: str) -> str:
    """Hash files by name and content; one that is absent counts as such."""
    digest = hashlib.sha256()
    for path in paths:
        content = b""
        if os.path.exists(os.path.join(ROOT, path)):
            with open(os.path.join(ROOT, path), "rb") as file:
                content = file.read()
        digest.update(f"{path} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def python_inputs(level: str) -> str:
    """Fingerprint everything that decides what pip installs at a level: what a broker needs, or everything."""
    with open(os.path.join(ROOT, REQUIREMENTS["run"])) as file:
        folders = [line[3:].split("[")[0].strip() for line in file if line.startswith("-e ")]
    names = [os.path.normpath(os.path.join(folder, "pyproject.toml")) for folder in folders]
    return fingerprint(REQUIREMENTS["run"], REQUIREMENTS[level], "constraints.txt", "setup.cfg", *names)


def npm_inputs() -> str:
    """Fingerprint everything that decides what npm installs."""
    return fingerprint(*(f"tests/interop/{name}" for name in ("package.json", "package-lock.json", ".npmrc")))


def npm_ready() -> bool:
    """Return whether MQTT.js lies where the tests look for it, as it is locked."""
    there = os.path.exists(os.path.join(INTEROP, "node_modules", "mqtt", "package.json"))
    return there and read_stamp(NPM_STAMP).get("inputs") == npm_inputs()


def venv_state(level: str) -> str:
    """Say what the environment needs: nothing ("ready"), another pip run ("update"), or to be made anew ("make")."""
    stamp = read_stamp()
    # No stamp: half filled. Another root: its scripts name a folder that isn't ours. No pip: its Python went.
    minor = platform.python_version().rpartition(".")[0]
    if stamp.get("root") != ROOT or stamp.get("python", "").rpartition(".")[0] != minor or not venv_works():
        return "make"
    ready = stamp["python"] == platform.python_version() and python_inputs(level) == stamp.get(level)
    return "ready" if ready else "update"


def venv_works() -> bool:
    """Return whether the environment's interpreter is still there and has its pip."""
    try:
        return subprocess.call([PYTHON, "-c", "import pip"], stderr=subprocess.DEVNULL) == 0
    except OSError:
        return False


def asks_for_source() -> bool:
    """Return whether KINMQTT_PURE asks for plain Python, as `kinmqtt` understands it."""
    return os.environ.get("KINMQTT_PURE", "") not in ("", "0")


def compiled() -> bool:
    """Return whether the message path is compiled from the sources that are here."""
    probe = [PYTHON, "-c", "import kinmqtt, sys; sys.exit(kinmqtt.TWIN != 'compiled')"]
    return subprocess.call(probe, stderr=subprocess.DEVNULL, env=COMPILED) == 0


def shown(path: str) -> str:
    """Write a path as short as may be: relative where it lies in this checkout."""
    return os.path.relpath(path, ROOT) if path.startswith(ROOT + os.sep) else path


def may_be_cleared(folder: str) -> bool:
    """Return whether making an environment there destroys nothing else than one."""
    if folder == os.path.join(ROOT, ".venv") or not os.path.exists(folder):
        return True
    if not os.path.isdir(folder):
        return False
    return not os.listdir(folder) or os.path.exists(os.path.join(folder, "pyvenv.cfg"))


def make_venv() -> None:
    """Make the environment from nothing, with pip of its own: Debian forbids pip outside of one (PEP 668)."""
    if not may_be_cleared(VENV):
        raise Failure(f"{VENV} holds something else than a virtual environment: let KINMQTT_VENV name another folder")
    if not packages.can_make_venv():
        hint = packages.by_hand([f"{packages.PYTHON_PACKAGE}-venv"])
        raise Failure(f"{sys.executable} can't make virtual environments: it has no ensurepip.\nOn Debian: {hint}")
    # A venv's own interpreter may be the one that runs this file; its base survives the clearing.
    base = getattr(sys, "_base_executable", sys.executable)
    if not quiet([base, "-m", "venv", "--clear", VENV]):
        raise Failure("the virtual environment could not be made (above)")


def install_python(level: str) -> None:
    """Fill the environment with pip."""
    stamp = read_stamp()
    if os.path.exists(STAMP):
        os.remove(STAMP)
    pip = [PYTHON, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    # One setuptools for all: an isolated build of each distribution would download its own.
    for what in (["-c", "constraints.txt", "setuptools"], ["--no-build-isolation", "-r", REQUIREMENTS[level]]):
        if not quiet([*pip, *what]):
            raise Failure("pip failed (above); run this again once the reason is gone")
    done = {each: python_inputs(each) for each in ("run", level)}
    kept = {"dev": stamp["dev"]} if "dev" in stamp else {}
    write_stamp({**kept, "root": ROOT, "python": platform.python_version(), **done})


def install_npm() -> None:
    """Install MQTT.js beside the interoperability tests, where npm is there to do it."""
    if os.path.exists(NPM_STAMP):
        os.remove(NPM_STAMP)
    complaint = "npm failed: the tests that need MQTT.js can't run"
    if shutil.which("npm") and quiet(["npm", "ci", "--no-audit", "--no-fund"], complaint, cwd=INTEROP):
        write_stamp({"inputs": npm_inputs()}, NPM_STAMP)


def compile_in_place() -> None:
    """Compile the message path beside its source."""
    if not compiled() and not packages.missing("compile"):
        command = [PYTHON, "setup.py", "build_ext", "--inplace"]
        if not quiet(command, "compiling failed (above)", cwd=os.path.join(ROOT, "core"), env=COMPILED):
            say("the message path runs as plain Python, at half the speed; --plain does not try to compile it")


def take_compiled(folder: str) -> None:
    """Put the compiled modules of core's wheel beside their sources, where a folder has one of these sources."""
    for name in os.listdir(folder):
        with zipfile.ZipFile(os.path.join(folder, name)) as wheel:
            made = [each for each in wheel.namelist() if each.endswith((".so", ".sha256"))]
            wheel.extractall(os.path.join(ROOT, "core", "src"), made)


def install(level: str, *uses: str, plain: bool = False) -> None:
    """Bring the checkout to the state its files describe, step by step; where it is there already, nothing happens.

    ``uses`` name the Debian packages that are installed besides those that make the environment.
    """
    began = time.monotonic()
    turn = take_turn()
    state = venv_state(level)
    steps: list[tuple[str, Callable[[], None]]] = []
    wanted = packages.missing("download", *(["venv"] if state == "make" else []), *uses)
    if wanted:
        steps.append(("Debian packages: " + " ".join(wanted), lambda: packages.install(wanted)))
    if state == "make":
        steps.append((f"making {shown(VENV)} with Python {platform.python_version()}", make_venv))
    if state != "ready":
        steps.append((f"pip install -r {REQUIREMENTS[level]}", lambda: install_python(level)))
    if level == "dev" and not npm_ready():
        steps.append(("MQTT.js with npm", install_npm))
    if not (plain or asks_for_source()) and (state != "ready" or not compiled()):
        absent = packages.missing("compile")
        if not absent or "compile" in uses:
            steps.append(("compiling the message path with mypyc", compile_in_place))
        else:
            say("without a C compiler the message path runs as plain Python: " + packages.by_hand(absent))
    for number, (text, step) in enumerate(steps, 1):
        say(f"[{number}/{len(steps)}] {text}")
        step_began = time.monotonic()
        step()
        say(f"[{number}/{len(steps)}] took {time.monotonic() - step_began:.1f} s")
    os.close(turn)
    if steps or uses:
        say(f"ready after {time.monotonic() - began:.1f} s")


def take_turn() -> int:
    """Wait until no other dev.py is installing here; the lock is on the folder itself and leaves no file."""
    descriptor = os.open(ROOT, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        say("waiting for another dev.py that is installing")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor
