"""`kinmqtt outbox` over a real Redis: brokers that run keep what is theirs, and what is unparked is sent."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from core_harness.brokers import BrokerProcess, run_command, running_broker
from core_harness.file_sink import installed, lines_in
from core_harness.wire import wire
from kinmqtt.mqtt.packets import Puback
from redis_harness.servers import RedisServer, redis_server
from spi_harness.processes import TIME_LIMIT_S, environment, wait_until

PARKED = ("bad 1", "bad 2", "bad 3")
IN_USE = "outbox file_sink:lines of node n1 is in use by a broker that runs"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One server; each test has a prefix of its own."""
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


class Site:
    """A broker's settings, and what its sink got."""

    def __init__(self, folder: Path, server: RedisServer) -> None:
        self.env = environment(PYTHONPATH=installed(folder / "site"))
        self.file = folder / "lines"
        self.config = folder / "kinmqtt.toml"
        self._stores = (
            '[broker]\nnode_name = "n1"\n'
            '[services]\nsession = "redis_session"\nqueue = "redis_session"\nretain = "redis_session"\n'
            f'[plugins.redis_session]\nhost = "127.0.0.1"\nport = {server.port}\nprefix = "{folder.name}:"\n'
        )
        self.set("poison = true")

    def set(self, more: str = "") -> None:
        """Write the settings, with more of the sink's."""
        self.config.write_text(f'{self._stores}[plugins.file_sink]\nfile = "{self.file}"\n{more}\n', encoding="utf-8")

    @contextmanager
    def broker(self) -> Iterator[BrokerProcess]:
        """A broker that runs."""
        with running_broker("-c", str(self.config), env=self.env) as broker:
            yield broker

    def park(self, broker: BrokerProcess) -> None:
        """Publish what the sink does not take, and something that it takes."""
        with wire(broker.port, "p") as publisher:
            for number, payload in enumerate((*PARKED, "good"), 1):
                publisher.publish("t", payload.encode(), 1, packet_id=number).expect(Puback)
        wait_until(lambda: any(line.taken for line in lines_in(self.file)), "the sink has what is good")

    def outbox(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command."""
        return run_command("outbox", *arguments, "-c", str(self.config), env=self.env)

    def listed(self) -> dict[str, Any]:
        """The only outbox."""
        done = self.outbox("list", "--json")
        assert done.returncode == 0, done.stderr
        [found] = json.loads(done.stdout)
        assert isinstance(found, dict)
        return found


@pytest.fixture
def site(tmp_path: Path, server: RedisServer) -> Site:
    """A site over the server."""
    return Site(tmp_path, server)


def test_a_broker_that_runs_keeps_its_outbox_and_sends_what_was_unparked_while_it_was_stopped(site: Site) -> None:
    """Only a list looks at what is in use; later the same messages come with the same ids."""
    with site.broker() as broker:
        site.park(broker)
        listed = site.listed()
        refused = site.outbox("drop", "lines", "--yes")
    before = lines_in(site.file)
    exported = site.outbox("export", "lines", "--parked")
    done = site.outbox("unpark", "lines")
    site.set()
    with site.broker():
        wait_until(lambda: len(lines_in(site.file)) >= len(before) + 3, "the sink has what was parked")

    sent = lines_in(site.file)[len(before) :]
    assert (listed["in_use"], listed["waits_for"]) == (True, "its sink: a broker that runs has it")
    assert (refused.returncode, refused.stdout) == (1, "") and IN_USE in refused.stderr
    assert exported.stdout.count('"kind":"queued"') == 3
    assert done.stdout.startswith("3 parked messages are in the outbox of file_sink:lines again"), done.stderr
    assert [line.payload for line in sent] == list(PARKED)
    assert {line.id for line in sent} == {line.id for line in before if not line.taken}


def test_a_broker_that_starts_meanwhile_fences_a_drop(site: Site) -> None:
    """The command waits for its answer; the broker has claimed the outbox by then, and nothing is dropped."""
    with site.broker() as broker:
        site.park(broker)
        broker.signal(signal.SIGKILL)
        broker.wait()
        broker.good_status = -signal.SIGKILL
    command = [sys.executable, "-m", "kinmqtt", "outbox", "drop", "lines", "--parked", "-c", str(site.config)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=site.env, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stderr is not None
        asked = process.stderr.readline()
        with site.broker():
            out, err = process.communicate("3\n", timeout=TIME_LIMIT_S)
    again = site.outbox("drop", "lines", "--parked", "--yes")
    listed = site.listed()

    assert asked.startswith("3 parked messages of file_sink:lines, node n1: ")
    assert (process.returncode, out) == (1, "")
    assert IN_USE in err
    assert again.stdout.startswith("dropped 3 parked messages of file_sink:lines, node n1: ")
    assert (listed["in_use"], listed["parked"]["messages"]) == (False, 0)
