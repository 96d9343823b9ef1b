"""docs/three-brokers.md, followed to the letter; and the files that its reader copies fit each other."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from core_harness.brokers import run_command
from kinmqtt.settings import BrokerSettings
from root_harness.terminal import Terminal, ports, replaced
from root_harness.walkthrough import Command, steps
from spi_harness.processes import environment

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "three-brokers.md").read_text(encoding="utf-8")
FOLDER = ROOT / "docs" / "examples" / "cluster"
PORTS = (6379, 1883, 1884, 1885, 1886, 2884, 2885, 2886, 4884, 4885, 4886)
NAMES = ("n1", "n2", "n3")
PROCESSES = ("redis", *NAMES, "haproxy")
HOSTS = tuple(f"{name}.brokers.example" for name in NAMES)
READER = {name: value for name, value in os.environ.items() if not name.startswith(("KINMQTT", "PYTEST", "COV"))} | {
    "PATH": f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}{os.pathsep}/usr/sbin",
    "LC_ALL": "C.UTF-8",
}


def copied(folder: Path, names: dict[str, str]) -> Path:
    """The folder of the page, as its reader copies it, with other ports."""
    shutil.copytree(FOLDER, folder)
    for file in folder.rglob("*"):
        if file.is_file():
            file.write_text(replaced(file.read_text(encoding="utf-8"), names), encoding="utf-8")
    return folder


def test_the_page_can_be_followed(tmp_path: Path) -> None:
    """Every command runs, with a real Redis, real brokers and a real HAProxy, and prints what the page says."""
    names = ports(*PORTS)
    folder = copied(tmp_path / "three-brokers", names)

    with Terminal(folder, READER) as terminal:
        differences = list(terminal.follow(PAGE, names))

    assert not differences, "\n\n".join(differences)


def test_the_page_has_something_to_follow() -> None:
    """An empty list of steps would let the test above pass."""
    found = [step.line for step in steps(PAGE) if isinstance(step, Command)]

    assert len(found) >= 40
    assert sum(line.startswith("kinmqtt run ") for line in found) == 6
    assert sum(line.startswith("kill ") for line in found) == 3


def test_a_page_that_is_wrong_is_found(tmp_path: Path) -> None:
    """Variables stay from one command to the next, and each command that prints something else is named."""
    page = "```console\n$ port=1883\n$ echo $port\n1883\n$ echo two\nthree\n```\n"

    with Terminal(tmp_path, READER) as terminal:
        [difference] = terminal.follow(page, {"1883": "2999"})

    assert difference == "$ echo two\nexpected:\nthree\nprinted:\ntwo\n"


def test_a_question_is_asked_until_it_is_answered(tmp_path: Path) -> None:
    """What happens in the background needs its time."""
    page = "```console\n$ (sleep 0.5; echo late > said) & touch said\n$ cat said\nlate\n```\n"

    with Terminal(tmp_path, READER) as terminal:
        differences = list(terminal.follow(page, {}))

    assert differences == []


@pytest.mark.parametrize("file", ["haproxy.cfg", "machines/haproxy.cfg"])
def test_haproxy_accepts_its_configuration(file: str) -> None:
    """HAProxy itself checks it, and warns of nothing but the machines of the example, which are not there."""
    done = subprocess.run(
        ["haproxy", "-c", "-f", FOLDER / file], env=READER, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    warnings = [line for line in done.stderr.splitlines() if not line.startswith("[NOTICE]")]
    assert [line for line in warnings if "could not resolve address" not in line] == []


def test_the_procfile_starts_what_the_page_starts() -> None:
    """The same commands, without what keeps them in the background of a terminal."""
    typed = {step.line for step in steps(PAGE) if isinstance(step, Command)}
    commands = {re.sub(r" >+ .*", "", line) for line in typed if line.endswith(tuple(f"{n}=$!" for n in PROCESSES))}
    procfile = dict(line.split(": ", 1) for line in (FOLDER / "Procfile").read_text().splitlines())

    assert list(procfile) == list(PROCESSES)
    assert commands == set(procfile.values())


def test_haproxy_of_one_machine_knows_the_brokers() -> None:
    """Each broker's listener that takes PROXY headers is a server of HAProxy, under the broker's name."""
    settings = {name: tomllib.loads((FOLDER / f"{name}.toml").read_text()) for name in NAMES}
    listeners = {name: each["listeners"]["haproxy"]["endpoint"] for name, each in settings.items()}

    assert servers("haproxy.cfg") == listeners


# Three machines


def servers(file: str) -> dict[str, str]:
    """The servers in a configuration of HAProxy, by name."""
    return dict(re.findall(r"^ +server (\S+) (\S+)", (FOLDER / file).read_text(), re.MULTILINE))


def composition() -> dict[str, Any]:
    """The services of compose.yaml."""
    found: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    return found


def machine() -> dict[str, Any]:
    """The settings of a broker on a machine of its own."""
    return tomllib.loads((FOLDER / "machines" / "kinmqtt.toml").read_text())


def test_the_keys_fit_the_settings(tmp_path: Path) -> None:
    """Each broker's settings are valid in its folder, and its certificate bears its name."""
    command = ["sh", str(FOLDER / "machines" / "keys.sh"), str(tmp_path / "keys"), *HOSTS]

    done = subprocess.run(command, env=READER, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    for host in HOSTS:
        folder = tmp_path / "keys" / host
        own = environment(KINMQTT__PLUGINS__AKKA_LIKE_CLUSTER__ADVERTISE=f"{host}:4883")
        checked = run_command("check", "-c", str(FOLDER / "machines" / "kinmqtt.toml"), cwd=folder, env=own)
        verified = subprocess.run(
            ["openssl", "verify", "-CAfile", "ca.pem", "-verify_hostname", host, "broker.pem"],
            cwd=folder,
            check=False,
        )
        assert (checked.returncode, verified.returncode) == (0, 0), checked.stderr
        assert (folder / "cookie").stat().st_mode & 0o077 == 0
        assert (folder / "environment").read_text() == f"KINMQTT__PLUGINS__AKKA_LIKE_CLUSTER__ADVERTISE={host}:4883\n"


def test_keys_that_are_there_stay(tmp_path: Path) -> None:
    """Containers that start again run keys.sh again: brokers that run must not lose their cookie."""
    command = ["sh", str(FOLDER / "machines" / "keys.sh"), str(tmp_path / "keys"), HOSTS[0]]
    subprocess.run(command, env=READER, check=True)
    keys = tmp_path / "keys"
    found = (keys / "cookie", keys / "ca.key", keys / "ca.pem", *(keys / HOSTS[0]).iterdir())
    before = {file: file.read_bytes() for file in found}

    subprocess.run([*command, HOSTS[1]], env=READER, check=True)

    assert before
    assert {file: file.read_bytes() for file in before} == before
    assert (tmp_path / "keys" / HOSTS[1] / "broker.pem").is_file()


def test_the_unit_fits_the_settings() -> None:
    """systemd makes the folders that the settings name, and gives the broker time to leave."""
    unit = configparser.ConfigParser()
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(FOLDER / "machines" / "kinmqtt.service")
    service, settings = unit["Service"], machine()

    assert service["ExecStart"].endswith("/kinmqtt run -c kinmqtt.toml")
    assert service["EnvironmentFile"] == f"{service['WorkingDirectory']}/environment"
    assert Path(settings["broker"]["data"]) == Path("/var/lib") / service["StateDirectory"]
    control = Path(settings["plugins"]["akka_like_cluster"]["control"])
    assert control.parent == Path("/run") / service["RuntimeDirectory"]
    assert int(service["TimeoutStopSec"]) > BrokerSettings().leave_s


def test_the_example_of_the_plugins_page_is_complete(tmp_path: Path) -> None:
    """The settings that its README shows first are valid as they are, beside the files that keys.sh makes."""
    page = (ROOT / "plugins" / "akka_like_cluster" / "README.md").read_text(encoding="utf-8")
    example = page.split("```toml\n", 1)[1].split("```", 1)[0]
    keys = tmp_path / "keys"
    subprocess.run(["sh", str(FOLDER / "machines" / "keys.sh"), str(keys), HOSTS[0]], env=READER, check=True)
    file = keys / HOSTS[0] / "n1.toml"
    file.write_text(example.replace("/var/lib/kinmqtt", str(tmp_path / "data")), encoding="utf-8")

    checked = run_command("check", "-c", file.name, cwd=file.parent)

    assert checked.returncode == 0, checked.stderr
    assert "cluster: akka_like_cluster" in checked.stdout


def test_the_containers_are_the_machines_of_the_settings() -> None:
    """Names, addresses and ports in compose.yaml are those of kinmqtt.toml and haproxy.cfg."""
    services, settings = composition()["services"], machine()
    plugin = settings["plugins"]["akka_like_cluster"]
    port = plugin["listen"].rpartition(":")[2]
    addresses = {}
    for name, host in zip(NAMES, HOSTS, strict=True):
        service = services[name]
        addresses[name] = service["environment"]["KINMQTT__PLUGINS__AKKA_LIKE_CLUSTER__ADVERTISE"]
        assert addresses[name] == f"{host}:{port}"
        assert service["hostname"] == name
        assert service["networks"]["default"]["aliases"] == [host]
        assert service["working_dir"] == f"/keys/{host}"
        assert host in services["keys"]["command"].split()
        assert plugin["control"] in service["healthcheck"]["test"]

    assert set(plugin["seeds"]) <= set(addresses.values())
    assert services["redis"]["networks"]["default"]["aliases"] == [settings["plugins"]["redis_session"]["host"]]
    [subnet] = composition()["networks"]["default"]["ipam"]["config"]
    assert settings["listeners"]["haproxy"]["proxy_trusted"] == [subnet["subnet"]]
    listens = settings["listeners"]["haproxy"]["endpoint"].removeprefix("tcp:")
    assert servers("machines/haproxy.cfg") == {n: f"{h}:{listens}" for n, h in zip(NAMES, HOSTS, strict=True)}


def test_the_containers_publish_haproxy() -> None:
    """Clients reach HAProxy's frontend, at the images that the page names."""
    services = composition()["services"]
    [bind] = re.findall(r"^ +bind (\S+)", (FOLDER / "machines" / "haproxy.cfg").read_text(), re.MULTILINE)

    assert services["haproxy"]["ports"] == [f"127.0.0.1:1883{bind}"]
    assert services["haproxy"]["image"].startswith("haproxy:")
    assert services["redis"]["image"] == "redis:7"
    assert "Redis 7" in PAGE


def test_the_containers_run_what_there_is() -> None:
    """Commands, and files that are copied or mounted, exist; a broker has time to leave; Redis keeps what it has."""
    services = composition()["services"]
    copies = re.findall(r"^COPY (\S+)", (FOLDER / "machines" / "Dockerfile").read_text(), re.MULTILINE)
    build = services["n1"]["build"]

    assert copies
    assert [path for path in copies if not (ROOT / path / "pyproject.toml").is_file()] == []
    assert (FOLDER / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]) == FOLDER / "machines" / "Dockerfile"
    assert '"kinmqtt", "run", "-c", "/machines/kinmqtt.toml"' in (ROOT / build["dockerfile"]).read_text()
    mounted = [volume.split(":")[0] for each in services.values() for volume in each["volumes"]]
    assert [path for path in mounted if path.startswith("./") and not (FOLDER / path).exists()] == []
    assert all(
        int(services[name]["stop_grace_period"].removesuffix("s")) > BrokerSettings().leave_s for name in NAMES
    )
    assert machine()["plugins"]["redis_session"]["durability"] == "aof"
    assert "--appendonly yes --appendfsync always" in services["redis"]["command"]
