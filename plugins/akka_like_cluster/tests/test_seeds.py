"""Seeds: static ones, those of a name, and those of a file."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_akka_like_cluster.net.seeds import DnsSeeds, FileSeeds, Seeds, StaticSeeds, make_seeds
from kinmqtt_akka_like_cluster.settings import MAX_SEEDS, AkkaSettings
from kinmqtt_spi.memory.plugin import RecordingLog


def found_by(seeds: Seeds) -> list[str]:
    """What a way of seeds finds now."""
    return asyncio.run(seeds.addresses())


class Names:
    """A resolver whose answer a test sets."""

    def __init__(self, *hosts: str) -> None:
        self.hosts = list(hosts)
        self.error: Exception | None = None
        self.asked: list[tuple[str, int]] = []

    async def resolve(self, name: str, port: int) -> Sequence[Any]:
        """Answer as ``socket.getaddrinfo`` does."""
        self.asked.append((name, port))
        if self.error is not None:
            raise self.error
        return [
            (socket.AF_INET6, 1, 6, "", (host, port, 0, 0))
            if ":" in host
            else (socket.AF_INET, 1, 6, "", (host, port))
            for host in self.hosts
        ]


def test_static_seeds_keep_their_order() -> None:
    """The first one may start a cluster alone; one that is there twice counts once."""
    seeds = StaticSeeds(["B.example:1", "10.0.0.1:2", "b.example:1", "unix:/run/a"])

    assert found_by(seeds) == ["b.example:1", "10.0.0.1:2", "unix:/run/a"]


def test_the_lowest_address_of_a_name_is_the_first_seed() -> None:
    """Resolvers shuffle, and text would put 10.0.0.10 before 10.0.0.9."""
    names = Names("2001:db8::2", "10.0.0.10", "10.0.0.9", "2001:db8::1", "10.0.0.9")
    seeds = DnsSeeds("brokers.example", 4883, RecordingLog(), names.resolve)

    found = found_by(seeds)

    assert found == ["10.0.0.9:4883", "10.0.0.10:4883", "[2001:db8::1]:4883", "[2001:db8::2]:4883"]
    assert names.asked == [("brokers.example", 4883)]


@given(st.permutations(["10.0.0.1", "10.0.0.2", "::1", "9.0.0.1"]))
def test_all_brokers_see_the_same_order(hosts: list[str]) -> None:
    """Whatever order their resolvers answer in."""
    assert found_by(DnsSeeds("n", 1, RecordingLog(), Names(*hosts).resolve)) == [
        "9.0.0.1:1",
        "10.0.0.1:1",
        "10.0.0.2:1",
        "[::1]:1",
    ]


def test_addresses_that_mean_something_else_elsewhere_are_left_out() -> None:
    """Those with a scope."""
    assert found_by(DnsSeeds("n", 1, RecordingLog(), Names("fe80::1%eth0", "10.0.0.1").resolve)) == ["10.0.0.1:1"]


def test_the_number_of_addresses_is_bounded() -> None:
    """A name may have any number of them."""
    names = Names(*(f"10.0.{number}.1" for number in range(200)))

    assert len(found_by(DnsSeeds("n", 1, RecordingLog(), names.resolve))) == MAX_SEEDS


@pytest.mark.parametrize("error", [socket.gaierror(-2, "Name or service not known"), UnicodeError("label too long")])
def test_a_name_that_is_not_known_is_logged_once(error: Exception) -> None:
    """It is asked for again; after it was known a failure is logged again."""
    names, log = Names("10.0.0.1"), RecordingLog()
    seeds = DnsSeeds("brokers.example", 1, log, names.resolve)

    names.error = error
    assert [found_by(seeds), found_by(seeds)] == [[], []]
    assert len(log.texts("warn")) == 1
    assert "dns: brokers.example can't be resolved" in log.texts()[0]
    names.error = None
    assert found_by(seeds) == ["10.0.0.1:1"]
    names.error = error
    assert found_by(seeds) == []
    assert len(log.texts("warn")) == 2


def test_the_system_resolves_names() -> None:
    """Without another resolver."""
    assert "127.0.0.1:4883" in found_by(DnsSeeds("localhost", 4883, RecordingLog()))


def test_a_file_is_read_at_each_call(tmp_path: Path) -> None:
    """Comments and empty lines are skipped."""
    path, log = tmp_path / "seeds", RecordingLog()
    seeds = FileSeeds(path, log)

    path.write_text("# brokers\n10.0.0.2:1\n\n  10.0.0.1:1  # the old one\r\n10.0.0.2:1\n")
    assert found_by(seeds) == ["10.0.0.2:1", "10.0.0.1:1"]
    path.write_text("10.0.0.3:1")
    assert found_by(seeds) == ["10.0.0.3:1"]
    assert log.lines == []


def test_a_missing_file_is_logged_once(tmp_path: Path) -> None:
    """There are no seeds until it is there; when it goes away again, that is logged again."""
    path, log = tmp_path / "seeds", RecordingLog()
    seeds = FileSeeds(path, log)

    assert [found_by(seeds), found_by(seeds)] == [[], []]
    assert log.texts("warn") == [
        f"plugins.akka_like_cluster.seeds_file: {path}: there is no such file; it is read again"
    ]
    path.write_text("10.0.0.1:1\n")
    assert found_by(seeds) == ["10.0.0.1:1"]
    path.unlink()
    assert found_by(seeds) == []
    assert len(log.texts("warn")) == 2


def test_a_fifo_does_not_block(tmp_path: Path) -> None:
    """It has no writer."""
    path, log = tmp_path / "seeds", RecordingLog()
    os.mkfifo(path)

    assert found_by(FileSeeds(path, log)) == []

    assert "it is a FIFO" in log.texts()[0]


def test_a_malformed_line_is_named_and_skipped(tmp_path: Path) -> None:
    """The other ones count; so many problems are logged and no more."""
    path, log = tmp_path / "seeds", RecordingLog()
    seeds = FileSeeds(path, log)

    path.write_text("10.0.0.1:1\n10.0.0.2\n")
    assert [found_by(seeds), found_by(seeds)] == [["10.0.0.1:1"]] * 2
    assert [line for line in log.texts("warn") if f"{path}:2: '10.0.0.2' is not host:port" in line] == log.texts()
    assert len(log.texts()) == 1
    path.write_text("x\n" * 1000)
    assert found_by(seeds) == []
    assert len(log.texts()) == 11


def test_a_long_file_is_cut(tmp_path: Path) -> None:
    """The first addresses are used, and the log says so."""
    path, log = tmp_path / "seeds", RecordingLog()
    path.write_text("\n".join(f"10.0.{number}.1:1" for number in range(100)))

    assert len(found_by(FileSeeds(path, log))) == MAX_SEEDS

    assert f"has 100 addresses, only the first {MAX_SEEDS} are used" in log.texts()[0]


def test_the_settings_choose_the_way(tmp_path: Path) -> None:
    """None of them: no seeds."""
    cookie, log = tmp_path / "cookie", RecordingLog()
    (tmp_path / "seeds").write_text("127.0.0.1:3\n")

    def by(**settings: Any) -> Seeds:
        return make_seeds(AkkaSettings(listen="127.0.0.1:1", cookie_file=cookie, **settings), log)

    assert found_by(by()) == []
    assert found_by(by(seeds=("127.0.0.1:2",))) == ["127.0.0.1:2"]
    assert found_by(by(seeds_file=tmp_path / "seeds")) == ["127.0.0.1:3"]
    assert "127.0.0.1:4" in found_by(by(dns="localhost:4"))
