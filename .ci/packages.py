"""The Debian packages that a checkout needs: which ones, for what, and how to see that one is missing."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable
from typing import NamedTuple

from steps import quiet, say

CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
PYTHON_PACKAGE = f"python{sys.version_info.major}.{sys.version_info.minor}"

OLDEST_JAVA = 17
"""The oldest Java that Spark 4 runs on."""

SERVICES = frozenset(("mosquitto", "rabbitmq-server", "redis-server"))
"""Packages that start a service. `.ci/apt-install` leaves it off: Mosquitto's would take our broker's port."""


class Package(NamedTuple):
    """A Debian package; ``use`` is ``download``, ``venv``, ``compile`` or ``test``."""

    name: Callable[[], str] | str
    purpose: str
    use: str
    present: Callable[[], bool]


def program(*names: str) -> Callable[[], bool]:
    """Return a check that all these programs are there, daemons in /usr/sbin included."""
    return lambda: all(found(name) for name in names)


TABLE = (
    Package("ca-certificates", "lets downloads verify who they come from", "download", lambda: has_certificates()),
    Package(f"{PYTHON_PACKAGE}-venv", "makes the virtual environment", "venv", lambda: can_make_venv()),
    Package("gcc", "compiles the message path", "compile", lambda: found(compiler()) is not None),
    Package("libc6-dev", "the headers of the C library", "compile", lambda: has_libc_headers()),
    Package(f"{PYTHON_PACKAGE}-dev", "the headers of Python", "compile", lambda: has_python_headers()),
    Package("mosquitto-clients", "publish and subscribe", "test", program("mosquitto_pub", "mosquitto_sub")),
    Package("nodejs", "runs MQTT.js", "test", program("node")),
    Package("npm", "installs MQTT.js; brings many packages and takes minutes", "test", program("npm")),
    Package("mosquitto", "a broker to compare ours with", "test", program("mosquitto")),
    Package("redis-server", "keeps sessions", "test", program("redis-server")),
    Package("rabbitmq-server", "takes messages from bridges", "test", program("rabbitmq-server")),
    Package("haproxy", "sends PROXY headers", "test", program("haproxy")),
    Package("openssl", "speaks TLS of all versions", "test", program("openssl")),
    Package(lambda: java_package(), "runs Spark and Kafka", "test", lambda: java_version() >= OLDEST_JAVA),
    Package("maven", "downloads Kafka; brings many packages", "test", program("mvn")),
    # Ubuntu's chromium is no package: there the test with a browser is skipped.
    Package("chromium", "a browser that speaks MQTT over WebSocket", "test", lambda: is_ubuntu() or has_chromium()),
)


def missing(*uses: str) -> dict[str, str]:
    """Return the absent packages of these uses by name, each with its purpose."""
    absent = (each for each in TABLE if each.use in uses and not each.present())
    return {each.name if isinstance(each.name, str) else each.name(): each.purpose for each in absent}


def install(wanted: dict[str, str]) -> None:
    """Install packages where we may; where not, say which ones to install by hand."""
    prefix = apt_prefix()
    if prefix is not None:
        quiet([*prefix, "sh", os.path.join(".ci", "apt-install"), *wanted], "some packages could not be installed")
        return
    say("these packages are missing and can't be installed from here:")
    for name, purpose in wanted.items():
        say(f"  {name:24} {purpose}")
    say("on Debian or Ubuntu: " + by_hand(wanted))


def apt_prefix() -> list[str] | None:
    """Return what to write before a command that installs, or None where installing is not ours to do."""
    if not shutil.which("apt-get"):
        return None
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo") and subprocess.call(["sudo", "-n", "true"], stderr=subprocess.DEVNULL) == 0:
        return ["sudo", "-n"]
    return None


def by_hand(names: Iterable[str]) -> str:
    """Return the command that installs these packages."""
    sudo = "" if os.geteuid() == 0 else "sudo "
    return f"{sudo}sh .ci/apt-install {' '.join(names)}"


def found(name: str) -> str | None:
    """Return the path of a program; /usr/sbin is searched too, which is only on root's path."""
    return shutil.which(name, path=os.environ.get("PATH", os.defpath) + os.pathsep + "/usr/sbin")


def has_certificates() -> bool:
    """Return whether downloads can be verified; only asked where apt-get could help."""
    return os.path.exists(CA_BUNDLE) or "SSL_CERT_FILE" in os.environ or not shutil.which("apt-get")


def can_make_venv() -> bool:
    """Return whether `python -m venv` can put pip into what it makes; Debian ships that part separately."""
    importlib.invalidate_caches()
    return importlib.util.find_spec("ensurepip") is not None


def compiler() -> str:
    """Return the C compiler that extension modules of this Python are built with."""
    for command in (os.environ.get("CC"), sysconfig.get_config_var("CC"), "cc"):
        if command and command.strip():
            return command.split()[0]
    return "cc"


def has_libc_headers() -> bool:
    """Return whether the headers of the C library are there; elsewhere than on Linux they come with the compiler."""
    return platform.system() != "Linux" or os.path.exists("/usr/include/stdlib.h")


def has_python_headers() -> bool:
    """Return whether this Python's headers are there."""
    return os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))


def has_chromium() -> bool:
    """Return whether the browser is there."""
    return found("chromium") is not None


def java_version() -> int:
    """Return the major version of the Java that Spark would start, or 0 where there is none."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else "java"
    try:
        said = subprocess.run([java, "-version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout
    except OSError:
        return 0
    version = re.search(r'version "(?:1\.)?(\d+)', said.decode("utf-8", "replace"))
    return int(version.group(1)) if version else 0


def java_package() -> str:
    """Return the package of the newest Java that the Debian or Ubuntu release has."""
    release = os_release()
    number = release.get("VERSION_ID", "")
    # The next Debian has no number yet.
    newer = release.get("ID") == "debian" and (not number.isdigit() or int(number) > 12)
    return "openjdk-21-jre-headless" if newer else "openjdk-17-jre-headless"


def os_release() -> dict[str, str]:
    """Return what the system says of itself, or nothing."""
    try:
        with open("/etc/os-release", encoding="utf-8") as file:
            pairs = [line.strip().partition("=") for line in file]
    except OSError:
        return {}
    return {name: value.strip('"') for name, _, value in pairs}


def is_ubuntu() -> bool:
    """Return whether this is Ubuntu."""
    return os_release().get("ID") == "ubuntu"
