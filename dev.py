#!/usr/bin/env python3
"""Prepares this checkout and runs the broker, the tests or the checks: `python3 dev.py help`.

Only the standard library is used. This file is kept readable for Python 3.6, so that an old interpreter gets a
sentence instead of a SyntaxError: no walrus, no match, no `X | Y` outside quotes. What it
imports from .ci/ need not be.
"""

import os
import platform
import subprocess
import sys
import tempfile
import time

PYTHONS = ((3, 11), (3, 12), (3, 13))
"""The versions of Python that are supported and tested, oldest first. A newer one is tried as it is."""

if sys.version_info < PYTHONS[0]:
    sys.exit(f"kinmqtt needs Python {PYTHONS[0][0]}.{PYTHONS[0][1]} or newer; this is {platform.python_version()}.")

ROOT = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(ROOT, ".ci"))

import environment  # noqa: E402
import packages  # noqa: E402
import pythons  # noqa: E402
from steps import Failure, say  # noqa: E402

CHECKS = (("ruff", "check", "."), ("ruff", "format", "--check", "."), ("mypy",))
"""What `check` runs, and tests/test_quality.py too: modules of the environment's Python with their arguments."""

SITE = ("sphinx", "-W", "--keep-going", "-q", "-b", "html", "docs")
"""Makes the documentation's site in the folder that follows, with warnings as errors."""

COMPILED_PARTS = ("broker", "mqtt", "net", "test_twin.py")
COMPILED_TESTS = tuple("core/tests/" + name for name in COMPILED_PARTS)
"""The tests of compiled modules, and of brokers made of them."""

HELP = """\
python3 dev.py COMMAND

  run [ARGS]     install what a broker needs, then run .venv/bin/kinmqtt run ARGS (defaults: loopback, port 1883)
  test [ARGS]    install, then run every test on all processors: the message path as plain Python first, then
                 the tests of its modules compiled, which --plain leaves out; with arguments, pytest ARGS
  install        make .venv with every distribution of this repository (editable), the test tools, Spark, the
                 Debian packages and the npm packages of the tests; a second time does nothing
  compile        compile the message path in place with mypyc; installs a C compiler and Python's headers
  check          install, then ruff and mypy
  docs           install, then make the documentation's site in build/docs
  lock           write constraints.txt anew, with the newest version of everything
  pythons        list the supported Pythons of this machine, oldest first: version and path
  help           this text

`run` and `install` compile too, wherever there are a C compiler and Python's headers; `--plain` right after the
command leaves that out. What was compiled is used until a source changes, and never under KINMQTT_PURE=1.

The environment variable KINMQTT_VENV names another folder than .venv, to have a second Python beside it:
  KINMQTT_VENV=.venv-3.13 python3.13 dev.py test

Debian packages are installed when you are root or sudo asks for no password; otherwise you are told what to
install. `run` goes on without them, `test` does not.
"""


def execute(command: "list[str]") -> int:
    """Becomes another program, which finds the environment's own programs first."""
    os.environ["VIRTUAL_ENV"] = environment.VENV
    os.environ["PATH"] = environment.BIN + os.pathsep + os.environ.get("PATH", os.defpath)
    sys.stdout.flush()
    os.execv(command[0], command)


def run(arguments: "list[str]") -> int:
    """Runs the broker, which needs nothing but the environment."""
    plain = arguments[:1] == ["--plain"]
    if plain:
        os.environ["KINMQTT_PURE"] = "1"
    here = os.getcwd()
    os.chdir(ROOT)
    environment.install("run", plain=plain)
    os.chdir(here)  # the broker's arguments may name files relative to where it was started
    return execute([os.path.join(environment.BIN, "kinmqtt"), "run", *arguments[plain:]])


def install(arguments: "list[str]") -> int:
    """Installs everything that the pages of this repository speak of."""
    if arguments not in ([], ["--plain"]):
        raise Failure(f"install takes --plain and nothing else, not {' '.join(arguments)}")
    environment.install("dev", "test", plain=bool(arguments))
    return 0


def test(arguments: "list[str]") -> int:
    """Runs the tests, all of which must be able to run."""
    environment.install("dev", "test", "compile", plain=True)
    absent = packages.missing("test", "compile")
    if absent:
        raise Failure(f"the tests need what is not installed: {', '.join(absent)}\n{packages.by_hand(absent)}")
    if not environment.npm_ready():
        raise Failure("the tests need MQTT.js under tests/interop/node_modules, which npm could not install")
    pytest = [environment.PYTHON, "-m", "pytest"]
    plain = arguments == ["--plain"]
    if arguments and not plain:
        return execute([*pytest, *arguments])
    # Each of the many processes of tests would compile every module to bytecode again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # A module's tests stay together: some share a broker. Many wait for processes: one worker more than processors.
    workers = str(min((os.cpu_count() or 1) + 1, 4))
    parallel = [*pytest, "--durations=20", "-n", workers, "--dist", "loadfile", "--no-loadscope-reorder"]
    with tempfile.TemporaryDirectory() as wheel:
        status = part(parallel, KINMQTT_PURE="1", KINMQTT_WHEEL=wheel)
        if plain:
            return status
        # tests/test_packaging.py has compiled it.
        environment.take_compiled(wheel)
    return compile_path([]) or part([*parallel, *COMPILED_TESTS], KINMQTT_PURE="0") or status


def part(command: "list[str]", **variables: str) -> int:
    """Runs a part of the tests and returns its exit status."""
    began = time.monotonic()
    path = environment.BIN + os.pathsep + os.environ.get("PATH", os.defpath)
    process = subprocess.Popen(command, env={**os.environ, "PATH": path, **variables})
    try:
        status = process.wait()
    except KeyboardInterrupt:
        process.wait()
        raise
    said = " ".join(f"{name}={value}" for name, value in variables.items())
    say(f"took {time.monotonic() - began:.0f} s, exit status {status}: {said} pytest {' '.join(command[3:])}")
    return status


def compile_path(arguments: "list[str]") -> int:
    """Compiles the message path beside its source, where that is not done."""
    os.environ.pop("KINMQTT_PURE", None)
    environment.install("run", "compile")
    absent = packages.missing("compile")
    if absent:
        raise Failure(f"compiling takes what is not installed: {', '.join(absent)}\n{packages.by_hand(absent)}")
    subprocess.call([os.path.join(environment.BIN, "kinmqtt"), "version"])
    return 0 if environment.compiled() else 1


def check(arguments: "list[str]") -> int:
    """Runs the linter, the formatter and the type checker, all of them whatever the first one says."""
    environment.install("dev", plain=True)
    failed = []
    for check in CHECKS:
        say(" ".join(check))
        if subprocess.call([environment.PYTHON, "-m", *check]) != 0:
            failed.append(check[0])
    return 1 if failed else 0


def docs(arguments: "list[str]") -> int:
    """Makes the documentation's site; a warning is an error."""
    environment.install("dev", plain=True)
    return subprocess.call([environment.PYTHON, "-m", *SITE, os.path.join("build", "docs"), *arguments])


def lock(arguments: "list[str]") -> int:
    """Writes constraints.txt anew."""
    return subprocess.call([sys.executable, os.path.join(".ci", "lock.py"), *arguments])


def list_pythons(arguments: "list[str]") -> int:
    """Lists the supported Pythons that run here, oldest first."""
    for version, path in pythons.installed(PYTHONS):
        print(f"{version} {path}")
    return 0


COMMANDS = {
    "run": run,
    "test": test,
    "install": install,
    "compile": compile_path,
    "check": check,
    "docs": docs,
    "lock": lock,
    "pythons": list_pythons,
}


def main(arguments: "list[str]") -> int:
    """Runs one command and returns the exit status."""
    name = arguments[0] if arguments else "help"
    if name not in COMMANDS:
        print(HELP, end="")
        return 0 if name in ("help", "-h", "--help") else 2
    if name != "run":
        os.chdir(ROOT)
    try:
        return COMMANDS[name](arguments[1:])
    except Failure as failure:
        say(str(failure))
        return 1
    except KeyboardInterrupt:
        say("interrupted; the next run goes on from here")
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
