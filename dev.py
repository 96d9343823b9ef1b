#!/usr/bin/env python3
"""Prepares this checkout and runs the broker, the tests or the checks: `python3 dev.py help`.

Only the standard library is used. The file is kept readable for Python 3.6, so that an old interpreter gets a
sentence instead of a SyntaxError: no walrus, no match, no `X | Y` outside quotes.
"""

import fcntl
import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from typing import Iterable

PYTHONS = ((3, 11), (3, 12), (3, 13))
"""The versions of Python that are supported and tested, oldest first. A newer one is tried as it is."""

ROOT = os.path.dirname(os.path.abspath(__file__))
VENV = os.path.normpath(os.path.join(ROOT, os.path.expanduser(os.environ.get("KINMQTT_VENV") or ".venv")))
"""A second environment beside .venv holds another Python: KINMQTT_VENV=.venv-3.13 python3.13 dev.py test"""
BIN = os.path.join(VENV, "bin")
PYTHON = os.path.join(BIN, "python")
STAMP = os.path.join(VENV, "kinmqtt-install.json")
REQUIREMENTS = "requirements-dev.txt"
SPARK = "requirements-spark.txt"
INTEROP = os.path.join("tests", "interop")
NPM_STAMP = os.path.join(ROOT, INTEROP, "node_modules", "kinmqtt-install.json")
"""Beside what npm installed, which all environments share."""
VENV_PACKAGE = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"

OLDEST_JAVA = 17
"""Of Spark 4."""

SERVICES = frozenset(("mosquitto", "redis-server"))
"""Debian packages that bring a service, which is left off."""

WITHOUT_ITS_SERVICE = """\
# A container's image may have a policy that starts no services; where there is none, one stands in meanwhile.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  trap 'rm -f "$policy"' EXIT
  trap 'exit 1' HUP INT TERM
  printf '#!/bin/sh\\nexit 101\\n' > "$policy" && chmod 755 "$policy" || exit 1
fi
"$@" || exit 1
# Nor at the next start of the machine; this is for systemd too.
for service in mosquitto redis-server; do
  if [ -e "/etc/init.d/$service" ]; then update-rc.d "$service" disable; fi
done
"""

HELP = """\
python3 dev.py COMMAND

  install        make .venv with every distribution of this repository (editable), the test tools, Spark,
                 the Debian packages and the npm packages the tests use; a second time does nothing
  run [ARGS]     install, then run the broker: .venv/bin/kinmqtt run ARGS (defaults: loopback, port 1883)
  test [ARGS]    install, then run the tests: pytest ARGS
  compile        install, then compile the message path in place with mypyc (about a minute; a C compiler and
                 Python's headers are wanted); it is used until a source it was made of changes, and never
                 under KINMQTT_PURE=1
  check          install, then ruff on everything and mypy --strict on spi and core
  pythons        list the supported Pythons that this machine has, oldest first: version and path
  help           this text

The environment variable KINMQTT_VENV names another folder than .venv, to have a second Python beside it:
  KINMQTT_VENV=.venv-3.13 python3.13 dev.py test

Debian packages are installed when you are root or sudo asks for no password; otherwise you are told what to
install. `run` goes on without them, `test` does not.
"""


class Failure(Exception):
    """Something the person at the keyboard has to know; its text is all they see."""


def say(text: str) -> None:
    """Prints one line of progress at once, also into a pipe."""
    print("dev.py: " + text, flush=True)


# What the system has to offer


def missing_tools(tests: bool) -> "dict[str, str]":
    """Names each Debian package that is wanted and absent, with what it is wanted for."""
    wanted = {}
    if venv_state() == "make" and not can_make_venv():
        wanted[VENV_PACKAGE] = "makes the virtual environment"
    if tests:
        wanted.update(missing_test_tools())
    if not (os.path.exists(CA_BUNDLE) or os.environ.get("SSL_CERT_FILE")) and shutil.which("apt-get"):
        wanted["ca-certificates"] = "lets downloads verify who they come from"
    return wanted


def missing_compiler() -> "dict[str, str]":
    """Names each absent Debian package that compiling takes."""
    wanted = {}
    if not shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0]):
        wanted["gcc"] = "compiles the message path"
    if not os.path.exists("/usr/include/stdlib.h"):
        wanted["libc6-dev"] = "the headers of the C library"
    if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
        wanted[f"python{sys.version_info[0]}.{sys.version_info[1]}-dev"] = "the headers of Python"
    return wanted


def missing_test_tools() -> "dict[str, str]":
    """Names the absent Debian packages that only the tests want."""
    wanted = {}
    if not (shutil.which("mosquitto_pub") and shutil.which("mosquitto_sub")):
        wanted["mosquitto-clients"] = "mosquitto_pub and mosquitto_sub, for the tests"
    if not shutil.which("node"):
        wanted["nodejs"] = "runs MQTT.js, for the tests"
    if not shutil.which("npm"):
        wanted["npm"] = "installs MQTT.js, for the tests"
    for program, purpose in (
        ("mosquitto", "answers the same questions as we do, for the tests"),
        ("redis-server", "keeps sessions, for the tests"),
        ("haproxy", "sends PROXY headers, for the tests"),
        ("openssl", "speaks TLS of all versions, for the tests"),
    ):
        if not found(program):
            wanted[program] = purpose
    if java_version() < OLDEST_JAVA:
        wanted[java_package()] = "runs Spark, for the tests"
    if not shutil.which("chromium") and not is_ubuntu():
        wanted["chromium"] = "runs a page that speaks MQTT over WebSocket, for the tests"
    return wanted


def found(program: str) -> "str | None":
    """Returns the path of a program; that of a daemon too, where /usr/sbin is on root's path only."""
    return shutil.which(program, path=os.environ.get("PATH", os.defpath) + os.pathsep + "/usr/sbin")


def java_version() -> int:
    """Returns the major version of the Java that Spark would start, or 0 where there is none."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else "java"
    try:
        said = subprocess.run([java, "-version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout
    except OSError:
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', said.decode("utf-8", "replace"))
    return int(found.group(1)) if found else 0


def java_package() -> str:
    """Names the Debian package of a Java that Spark runs on: the newest of those that the release has."""
    release = os_release()
    number = release.get("VERSION_ID", "")
    # What is to be the next Debian has no number yet.
    newer = release.get("ID") == "debian" and (not number.isdigit() or int(number) > 12)
    return "openjdk-21-jre-headless" if newer else "openjdk-17-jre-headless"


def os_release() -> "dict[str, str]":
    """Returns what the system says of itself, or nothing."""
    try:
        with open("/etc/os-release") as file:
            pairs = [line.strip().partition("=") for line in file]
    except OSError:
        return {}
    return {name: value.strip('"') for name, _, value in pairs}


def is_ubuntu() -> bool:
    """Tells whether this is Ubuntu, whose chromium is no package: there the test with a browser is skipped."""
    return os_release().get("ID") == "ubuntu"


def can_make_venv() -> bool:
    """Tells whether `python -m venv` can put pip into what it makes; Debian ships that part separately."""
    importlib.invalidate_caches()
    return importlib.util.find_spec("ensurepip") is not None


def apt_prefix() -> "list[str] | None":
    """Returns what to write before apt-get, or None where installing packages is not ours to do."""
    if not shutil.which("apt-get"):
        return None
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo") and subprocess.call(["sudo", "-n", "true"], stderr=subprocess.DEVNULL) == 0:
        return ["sudo", "-n"]
    return None


def install_tools(wanted: "dict[str, str]") -> None:
    """Installs the absent Debian packages, or says which ones to install by hand."""
    if not wanted:
        return
    prefix = apt_prefix()
    if prefix is None:
        say("these packages are missing and can't be installed from here:")
        for package, purpose in wanted.items():
            say(f"  {package:18} {purpose}")
        say("on Debian or Ubuntu: " + by_hand(wanted))
        return
    say("installing Debian packages: " + " ".join(wanted))
    if "npm" in wanted:
        say("npm brings many others; this can take minutes")
    # Only what is named and what it needs: recommended packages could bring services that nobody asked for.
    apt = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq", "-oDPkg::Lock::Timeout=120"]
    quiet([*prefix, *apt, "update"], "apt-get update failed; trying with the package lists that are there")
    # These are wanted as programs: their services would take ports, and Mosquitto's is the one of our broker.
    if not SERVICES.isdisjoint(wanted):
        apt = ["sh", "-c", WITHOUT_ITS_SERVICE, "sh", *apt]
    command = [*prefix, *apt, "install", "--yes", "--no-install-recommends"]
    if not quiet([*command, *wanted], "apt-get install failed") and len(wanted) > 1:
        say("trying one package after the other")
        for package in wanted:
            quiet([*command, package], f"{package} could not be installed")


def by_hand(packages: "Iterable[str]") -> str:
    """Writes the command that installs these packages."""
    sudo = "" if os.geteuid() == 0 else "sudo "
    command = f"{sudo}apt-get update && {sudo}apt-get install --no-install-recommends {' '.join(packages)}"
    for service in sorted(SERVICES.intersection(packages)):
        # Nobody but the package itself starts it, and its port is free again.
        command += f" && {sudo}service {service} stop && {sudo}update-rc.d {service} disable"
    return command


def quiet(command: "list[str]", complaint: str) -> bool:
    """Runs a command whose output matters only when it fails, and tells whether it succeeded."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT)
    if done.returncode != 0:
        print(done.stdout.decode("utf-8", "replace")[-4000:], flush=True)
        say(complaint)
    return done.returncode == 0


# What is installed already


def read_stamp(path: str = STAMP) -> "dict[str, str]":
    """Returns what the last complete install wrote down, or nothing."""
    try:
        with open(path) as file:
            return dict(json.load(file))
    except (OSError, ValueError):
        return {}


def write_stamp(stamp: "dict[str, str]", path: str = STAMP) -> None:
    """Writes the stamp in one step, so that an interrupted run leaves the old one or the new one."""
    with open(path + ".new", "w") as file:
        json.dump(stamp, file, indent=1)
    os.replace(path + ".new", path)


def fingerprint(paths: "list[str]") -> str:
    """Hashes files by name and content; one that is absent counts as such."""
    digest = hashlib.sha256()
    for path in paths:
        full = os.path.join(ROOT, path)
        content = b""
        if os.path.exists(full):
            with open(full, "rb") as file:
                content = file.read()
        digest.update(f"{path} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def distributions() -> "list[str]":
    """Returns the folders that the requirements file installs editable."""
    folders = []
    with open(os.path.join(ROOT, REQUIREMENTS)) as file:
        for line in file:
            if line.startswith("-e "):
                folders.append(os.path.normpath(line[3:].split("[")[0].strip()))
    return folders


def python_inputs() -> str:
    """Fingerprints everything that decides what pip installs."""
    paths = [REQUIREMENTS, "setup.cfg"]
    paths += [os.path.join(folder, "pyproject.toml") for folder in distributions()]
    return fingerprint(paths)


def npm_inputs() -> str:
    """Fingerprints everything that decides what npm installs."""
    names = ("package.json", "package-lock.json", ".npmrc")
    return fingerprint([os.path.join(INTEROP, name) for name in names])


def wanted_stamp() -> "dict[str, str]":
    """Returns what the stamp says when the environment is as this checkout describes it."""
    return {"root": ROOT, "python": platform.python_version(), "inputs": python_inputs()}


def venv_state() -> str:
    """Says what the environment needs: nothing ("ready"), another pip run ("update"), or to be made anew ("make")."""
    wanted, stamp = wanted_stamp(), read_stamp()
    # No stamp: half filled. Another root: its scripts name a folder that isn't ours. No pip: its Python went.
    same_minor = stamp.get("python", "").split(".")[:2] == wanted["python"].split(".")[:2]
    if stamp.get("root") != ROOT or not same_minor or not venv_works():
        return "make"
    return "ready" if all(stamp[key] == value for key, value in wanted.items()) else "update"


def venv_works() -> bool:
    """Tells whether the environment's interpreter is still there and has its pip."""
    probe = [PYTHON, "-c", "import pip"]
    try:
        return subprocess.call(probe, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0
    except OSError:
        return False


# Installing


def install(tests: bool = True) -> None:
    """Brings the checkout to the state its files describe; where it is there already, nothing happens.

    Without ``tests`` what only they need is left out, but for what pip brings.
    """
    began = time.monotonic()
    os.chdir(ROOT)
    lock = take_turn()
    install_tools(missing_tools(tests))
    install_python()
    if tests:
        install_spark()
        install_npm()
    os.close(lock)
    say(f"ready after {time.monotonic() - began:.1f} s")


def take_turn() -> int:
    """Waits until no other dev.py is installing here; the lock is on the folder itself and leaves no file."""
    descriptor = os.open(ROOT, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        say("waiting for another dev.py that is installing")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def install_python() -> None:
    """Makes the virtual environment and fills it, as far as the stamp doesn't say that was done."""
    state = venv_state()
    if state == "ready":
        return
    if state == "make":
        make_venv()
    else:
        say(f"something changed: updating {shown(VENV)}")
        os.remove(STAMP)
    say("installing the distributions and the test tools with pip (about a minute)")
    pip = [PYTHON, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "-r", REQUIREMENTS]
    if subprocess.call(pip) != 0:
        raise Failure("pip failed (above); run this again once the reason is gone")
    write_stamp(wanted_stamp())


def install_spark() -> None:
    """Installs what the data pipeline and its tests need: half a gigabyte that a broker never asks for."""
    wanted = fingerprint([SPARK, os.path.join("metrics", "pyproject.toml")])
    stamp = read_stamp()
    if stamp.pop("spark", "") == wanted:
        return
    say("installing PySpark with pip (about a minute)")
    write_stamp(stamp)
    pip = [PYTHON, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "-r", SPARK]
    if subprocess.call(pip) != 0:
        raise Failure("pip failed (above); run this again once the reason is gone")
    write_stamp(dict(stamp, spark=wanted))


def make_venv() -> None:
    """Makes the environment from nothing, with pip of its own: Debian forbids pip outside of one (PEP 668)."""
    if not may_be_cleared(VENV):
        raise Failure(f"{VENV} holds something else than a virtual environment: let KINMQTT_VENV name another folder")
    if not can_make_venv():
        raise Failure(
            f"this Python ({sys.executable}) can't make virtual environments: it has no ensurepip.\n"
            f"On Debian or Ubuntu run: {by_hand([VENV_PACKAGE])}"
        )
    verb = "remaking" if os.path.exists(VENV) else "making"
    say(f"{verb} {shown(VENV)} with Python {platform.python_version()}")
    # A venv's own interpreter may be the one that runs this file; its base survives the clearing.
    base = getattr(sys, "_base_executable", sys.executable)
    if subprocess.call([base, "-m", "venv", "--clear", VENV]) != 0:
        raise Failure("the virtual environment could not be made (above)")


def may_be_cleared(folder: str) -> bool:
    """Tells whether making an environment there destroys nothing else than one."""
    if folder == os.path.join(ROOT, ".venv") or not os.path.exists(folder):
        return True
    if not os.path.isdir(folder):
        return False
    return not os.listdir(folder) or os.path.exists(os.path.join(folder, "pyvenv.cfg"))


def shown(path: str) -> str:
    """Writes a path as short as may be: relative where it lies in this checkout."""
    return os.path.relpath(path, ROOT) if path.startswith(ROOT + os.sep) else path


def install_npm() -> None:
    """Installs MQTT.js beside the interoperability tests, where npm is there to do it."""
    if (read_stamp(NPM_STAMP).get("inputs") == npm_inputs() and npm_installed()) or not shutil.which("npm"):
        return
    say("installing MQTT.js with npm")
    if os.path.exists(NPM_STAMP):
        os.remove(NPM_STAMP)
    locked = os.path.exists(os.path.join(INTEROP, "package-lock.json"))
    npm = ["npm", "ci" if locked else "install", "--no-audit", "--no-fund", "--loglevel=error"]
    if subprocess.call(npm, cwd=os.path.join(ROOT, INTEROP), stdout=subprocess.DEVNULL) != 0:
        say("npm failed (above): the tests that need MQTT.js can't run")
        return
    # Read again: `npm install` may have written the lock file.
    write_stamp({"inputs": npm_inputs()}, NPM_STAMP)


def npm_installed() -> bool:
    """Tells whether MQTT.js lies where the tests look for it."""
    return os.path.exists(os.path.join(ROOT, INTEROP, "node_modules", "mqtt", "package.json"))


# The commands


def execute(command: "list[str]") -> None:
    """Becomes another program, which finds the environment's own programs first."""
    os.environ["VIRTUAL_ENV"] = VENV
    os.environ["PATH"] = BIN + os.pathsep + os.environ.get("PATH", os.defpath)
    sys.stdout.flush()
    os.execv(command[0], command)


def run(arguments: "list[str]") -> int:
    """Runs the broker, which needs nothing but the environment."""
    # What only the tests need was tried when the environment was made: no waiting for it at every start.
    if venv_state() != "ready":
        here = os.getcwd()
        install(tests=False)
        os.chdir(here)  # the broker's arguments may name files relative to where it was started
    execute([os.path.join(BIN, "kinmqtt"), "run", *arguments])
    return 0


def test(arguments: "list[str]") -> int:
    """Runs the tests, all of which must be able to run."""
    install()
    absent = missing_tools(tests=True)
    if absent:
        raise Failure(f"the tests need what is not installed: {', '.join(absent)}\n{by_hand(absent)}")
    if not npm_installed():
        raise Failure(f"the tests need MQTT.js under {INTEROP}/node_modules, which npm could not install")
    execute([PYTHON, "-m", "pytest", *arguments])
    return 0


def compile_in_place(arguments: "list[str]") -> int:
    """Compiles the message path beside its source."""
    install(tests=False)
    install_tools(missing_compiler())
    absent = missing_compiler()
    if absent:
        raise Failure(f"compiling takes what is not installed: {', '.join(absent)}\n{by_hand(absent)}")
    core = os.path.join(ROOT, "core")
    say("compiling (about a minute)")
    environment = {name: value for name, value in os.environ.items() if name != "KINMQTT_PURE"}
    log = os.path.join(core, "build", "compile.log")
    os.makedirs(os.path.dirname(log), exist_ok=True)
    with open(log, "wb") as file:
        command = [PYTHON, "setup.py", "build_ext", "--inplace", *arguments]
        status = subprocess.call(command, cwd=core, env=environment, stdout=file, stderr=file)
    if status != 0:
        with open(log, errors="replace") as file:
            print(file.read()[-4000:], flush=True)
        raise Failure(f"compiling failed (above, and in {log})")
    return subprocess.call([os.path.join(BIN, "kinmqtt"), "version"], env=environment)


def check(arguments: "list[str]") -> int:
    """Runs the linter and the type checker, both, whatever the first one says."""
    install()
    failed = 0
    for tool in (["ruff", "check", "."], ["mypy"]):
        say(" ".join(tool))
        failed |= subprocess.call([PYTHON, "-m", *tool, *arguments])
    return 1 if failed else 0


def pythons(arguments: "list[str]") -> int:
    """Lists the supported Pythons that run here, oldest first."""
    for version, path in installed_pythons():
        print(f"{version} {path}")
    return 0


def installed_pythons() -> "list[tuple[str, str]]":
    """Returns version and path of one Python of each supported version that this machine has, oldest first."""
    found = []
    for version in PYTHONS:
        path = next((path for path in candidates(version) if runs(path, version)), None)
        if path is not None:
            found.append((f"{version[0]}.{version[1]}", path))
    return found


def candidates(version: "tuple[int, int]") -> "Iterable[str]":
    """Names where a Python of a version may be: this one, the one on the path, and those that pyenv made."""
    name = f"python{version[0]}.{version[1]}"
    if sys.version_info[:2] == version:
        # A venv's own interpreter may be the one that runs this file; its base makes others.
        yield getattr(sys, "_base_executable", sys.executable)
    on_path = shutil.which(name)
    if on_path is not None:
        yield on_path
    versions = os.path.join(os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv"), "versions")
    # A release, and neither an environment of pyenv's nor one that has not come out yet. The newest of them first.
    release = re.compile(rf"{version[0]}\.{version[1]}\.(\d+)$")
    matches = [match for match in map(release.match, listed(versions)) if match is not None]
    for match in sorted(matches, key=lambda match: -int(match.group(1))):
        yield os.path.join(versions, match.group(), "bin", name)


def listed(folder: str) -> "list[str]":
    """Returns the names in a folder, none where there is no such folder."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def runs(path: str, version: "tuple[int, int]") -> bool:
    """Tells whether a program is there, and is a Python of that version: pyenv's stand-ins may be nothing."""
    probe = [path, "-c", f"import sys; sys.exit(sys.version_info[:2] != {version})"]
    try:
        return subprocess.call(probe, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0
    except OSError:
        return False


def main(arguments: "list[str]") -> int:
    """Runs one command and returns the exit status."""
    if sys.version_info < PYTHONS[0]:
        oldest = ".".join(str(number) for number in PYTHONS[0])
        print(f"kinmqtt needs Python {oldest} or newer; this is Python {platform.python_version()}.")
        return 1
    commands = {"run": run, "test": test, "compile": compile_in_place, "check": check, "pythons": pythons}
    name = arguments[0] if arguments else "help"
    try:
        if name == "install" and len(arguments) == 1:
            install()
            return 0
        if name in commands:
            return commands[name](arguments[1:])
    except Failure as failure:
        say(str(failure))
        return 1
    except KeyboardInterrupt:
        say("interrupted; the next run goes on from here")
        return 130
    print(HELP, end="")
    return 0 if name in ("help", "-h", "--help") else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
