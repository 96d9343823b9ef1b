"""`kinmqtt store` as a person sees it, over directories that a broker has left."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from core_harness.brokers import BrokerProcess, broker_command, run_command, running_broker
from core_harness.wire import wire
from kinmqtt.builtins.embedded.directory import DataDirectory
from kinmqtt.builtins.embedded.records import CommitGroup, pack
from kinmqtt.builtins.embedded.segment import Segment, name_of
from kinmqtt.mqtt.packets import ConnectWill, Puback, Publish, Pubrec, Pubrel
from kinmqtt_spi.plain import to_plain
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.services.event import Event, EventKind, EventVersion, Recorded
from kinmqtt_spi.services.queue import Append, Entry, InboundOpen, InflightEntry, Release, Remove, Send, Stage
from kinmqtt_spi.services.retain import RetainVersion, RetainWrite
from kinmqtt_spi.services.session import OpenSession, StoredSession
from kinmqtt_spi.values import Message, MessageId, Publisher, Subscription
from kinmqtt_spi.values import Will as StoredWill
from spi_harness.processes import TIME_LIMIT_S, environment, free_port

KEPT: dict[str, Any] = {"clean_start": False, "properties": Properties(session_expiry_interval=3600)}
BIG = b"x" * 20_000
"""A payload that a damage can be aimed at."""


# Directories


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a broker left that was killed under way."""
    data = tmp_path_factory.mktemp("broker") / "data"
    port = free_port()
    broker = BrokerProcess(broker_command(port, "--data", str(data)), port)
    try:
        broker.wait_for_line("listening on ")
        live_and_die(broker)
    finally:
        broker.end()
    return data


def live_and_die(broker: BrokerProcess) -> None:
    """Two clients of which something of every sort is kept, and a broker that does not see them go."""
    properties = Properties(will_delay_interval=1000, content_type="text", user_property=(("a", "1"), ("a", "2")))
    will = ConnectWill("gone", b"\xff\x00", 1, False, properties)
    with wire(broker.port, "sub", **KEPT) as sub, wire(broker.port, "pub", will=will, **KEPT) as pub:
        sub.subscribe("a/#", 2)
        sub.subscribe("$share/g/b", 1, packet_id=2)
        pub.publish("a/1", b"1", 1, packet_id=1).expect(Puback)
        pub.publish("a/2", b"2", 2, packet_id=2).expect(Pubrec)
        first, second = sub.expect(Publish), sub.expect(Publish)
        assert (first.packet_id, second.packet_id) == (1, 2)
        sub.send(Pubrec(2)).expect(Pubrel)
        sub.close()
        pub.publish("state", BIG, 1, retain=True, packet_id=3).expect(Puback)
        pub.publish("a/3", b"3", 1, packet_id=4).expect(Puback)
        broker.signal(signal.SIGKILL)
        broker.wait()


@pytest.fixture
def data(left: Path, tmp_path: Path) -> Path:
    """A copy of it for one test."""
    return Path(shutil.copytree(left, tmp_path / "data"))


def message(number: int, payload: bytes = b"x") -> Message:
    """A message with nothing left out."""
    properties = Properties(correlation_data=b"\x00", subscription_identifier=(1, 2), content_type="ä")
    return Message(
        f"t/{number}", payload, 1, False, properties, Publisher("p", "u"), MessageId(2**63, number), 5.5, 9e9
    )


def made(folder: Path) -> Path:
    """A directory with what a broker seldom leaves: several segments, drained queues, gaps, odd names."""
    folder.mkdir()
    will = StoredWill(message(9), 4)
    subscriptions = (Subscription("a/+", 2, "g", True, True, 1, 7), Subscription("b"))
    shared = message(1, BIG)
    groups = [
        CommitGroup(
            sessions=[
                OpenSession(3, StoredSession("a", 60, subscriptions, will, 1.0, "u", 5, 61.0, 5.0)),
                OpenSession(1, StoredSession("\u00fc\n/#", 0xFFFF_FFFF)),
                OpenSession(2, StoredSession("drained", 7)),
            ],
            floor=4_000_000,
            offsets={"audit": 1, "none yet": -1},
        ),
        CommitGroup(
            queue=[
                *(Append("a", 3, Entry(number, shared, 1, identifiers=(4,))) for number in range(5, 9)),
                Append("a", 3, Entry(9, message(2), 2, True, (), "$share/g/a/+"), 11),
                Send("a", 3, 5, 10),
                Release("a", 3, 9),
                InboundOpen("a", 3, 65_535),
                InboundOpen("a", 3, 1),
                Append("drained", 2, Entry(40, shared, 1)),
                Remove("drained", 2, 40),
                Append("\u00fc\n/#", 1, Entry(1, shared, 1)),
            ]
        ),
        CommitGroup(
            retain=[RetainWrite(message(number, BIG), RetainVersion(number, 2**63, number)) for number in range(20)],
            events=[
                Recorded(offset, Event(kind, "a", EventVersion(3, offset), 2.0, data))
                for offset, kind, data in (
                    (0, EventKind.CONNECT, {"clean_start": False, "list": [1, None, {"deep": "ä"}]}),
                    (1, EventKind.QUEUE_DROP, {"bytes": b"\xff", "odd": {"$base64": "x"}, "rate": 0.5}),
                )
            ],
        ),
    ]
    for number, group in enumerate(groups, 1):
        segment = Segment(folder, number)
        segment.append(pack(group))
        segment.seal()
    return folder


# Commands


def store(action: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """`kinmqtt store` in a process of its own."""
    return run_command("store", action, *map(str, arguments))


def exported(path: Path) -> list[str]:
    """The lines of an export that goes well."""
    done = store("export", path)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def take(path: Path, text: str | bytes) -> subprocess.CompletedProcess[bytes]:
    """`kinmqtt store import` of that text."""
    return subprocess.run(
        [sys.executable, "-m", "kinmqtt", "store", "import", str(path)],
        input=text.encode() if isinstance(text, str) else text,
        capture_output=True,
        timeout=TIME_LIMIT_S,
        env=environment(),
        check=False,
    )


def refusal(done: subprocess.CompletedProcess[Any]) -> str:
    """The one line that a command was refused with."""
    error = done.stderr if isinstance(done.stderr, str) else done.stderr.decode()
    assert (done.returncode, len(done.stdout)) == (1, 0), error
    [line] = error.splitlines()
    assert line.startswith("kinmqtt: ")
    return line.removeprefix("kinmqtt: ")


def names(folder: Path) -> list[str]:
    """What is in a folder."""
    return sorted(path.name for path in folder.iterdir())


def content(folder: Path) -> dict[str, bytes]:
    """What is in the files of a folder, apart from the lock."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock"}


def damage(folder: Path) -> Path:
    """Flip a byte of a payload; answers the file it is in."""
    # Only once the write-ahead log is part of the file a damage stays where it is put.
    DataDirectory(folder).tidy()
    for path in sorted(folder.glob("journal-*.sqlite3")):
        whole = bytearray(path.read_bytes())
        at = whole.find(BIG[:3000])
        if at >= 0:
            whole[at + 1000] ^= 1
            path.write_bytes(whole)
            return path
    raise AssertionError("nothing to damage")


# Check


def test_a_check_counts_what_there_is(data: Path) -> None:
    """A person sees how much of everything a killed broker has kept, and that it can be read."""
    done = store("check", data)

    assert (done.returncode, done.stderr) == (0, "")
    *lines, size, last = done.stdout.splitlines()
    assert lines == [
        "sessions: 2",
        "subscriptions: 2",
        "queued messages: 1",
        "messages in flight: 2",
        "inbound QoS 2 identifiers: 1",
        "retained messages: 1",
        "events: 6",
        "segments: 2",
    ]
    assert int(size.removeprefix("bytes: ")) > len(BIG)
    assert last == "the store is sound"


def test_a_check_finds_a_flipped_byte(data: Path) -> None:
    """One bit of a payload is enough: the file and the row are named, and the ways on."""
    path = damage(data)

    done = store("check", data)

    assert done.returncode == 1
    assert "the store is sound" not in done.stdout
    assert "retained messages: 0" in done.stdout
    problem, ways_on = done.stderr.splitlines()
    assert problem.startswith(f"kinmqtt: {path}: row ")
    assert problem.endswith("is damaged: its checksum is wrong")
    assert "`kinmqtt store export --skip-damaged DIRECTORY > FILE`" in ways_on


def test_a_check_lists_every_problem(tmp_path: Path) -> None:
    """Not only the first: who decides what to do must know how bad it is."""
    data = made(tmp_path / "data")
    segment = Segment(data, 4)
    for number in range(4):
        segment.append(pack(CommitGroup(retain=[RetainWrite(message(number, BIG), RetainVersion(99.0, 1, number))])))
    segment.seal()
    path = data / name_of(4)
    whole = bytearray(path.read_bytes())
    at = -1
    for _ in range(4):
        at = whole.index(BIG[:3000], at + 1)
        whole[at] ^= 1
        at += len(BIG) // 2
    path.write_bytes(whole)
    (data / name_of(2)).write_bytes(b"no database" * 1000)

    done = store("check", data)

    problems = done.stderr.splitlines()[:-1]
    assert done.returncode == 1
    assert len([line for line in problems if f"{path}: row " in line]) >= 2
    assert any(f"{data / name_of(2)} can't be read" in line for line in problems)
    assert not any("kinmqtt store export" in line for line in problems)


@pytest.mark.parametrize("action", ["check", "export"])
def test_to_look_changes_nothing(data: Path, action: str) -> None:
    """What a killed broker has left can be looked at as often as one likes, and copied afterwards."""
    before = content(data)

    done = store(action, data)

    assert any(name.endswith("-wal") for name in before)
    assert (done.returncode, done.stderr) == (0, "")
    assert content(data) == before


def wal_of(folder: Path) -> Path:
    """The write-ahead log with the most in it, as a killed broker leaves it."""
    return max(folder.glob("journal-*-wal"), key=lambda path: path.stat().st_size)


def overwrite(path: Path, at: int, text: bytes) -> None:
    """Put something else in the middle of a file."""
    with path.open("r+b") as file:
        file.seek(at)
        file.write(text)


DAMAGED: dict[str, Callable[[Path], object]] = {
    "the header of the -wal": lambda wal: overwrite(wal, 0, b"\x5a" * 32),
    "the middle of the -wal": lambda wal: overwrite(wal, wal.stat().st_size // 2, b"\x5a" * 100),
    "the end of the -wal": lambda wal: os.truncate(wal, wal.stat().st_size - 1000),
    "no -wal": Path.unlink,
    "an empty -wal": lambda wal: os.truncate(wal, 0),
    "an empty segment": lambda wal: os.truncate(str(wal).removesuffix("-wal"), 0),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_what_is_lost_of_a_write_ahead_log_is_told_of(data: Path, what: str) -> None:
    """A check says so each time, the others refuse, and who saves what is left is told that something is not."""
    DAMAGED[what](wal_of(data))
    before = content(data)

    checks = [store("check", data) for _ in range(2)]
    refusals = [refusal(store(action, data)) for action in ("export", "compact")]
    saved = store("export", "--skip-damaged", data)

    for check in checks:
        assert check.returncode == 1
        assert "the store is sound" not in check.stdout
        assert any(name_of(1) in line for line in check.stderr.splitlines()[:-1])
    assert checks[0].stderr == checks[1].stderr
    assert all(name_of(1) in said and "--skip-damaged" in said for said in refusals)
    assert "kinmqtt: left out: " in saved.stderr
    assert content(data) == before


def test_what_nothing_can_be_saved_of_makes_no_export(data: Path) -> None:
    """An export with nothing in it would look like one of a store that held nothing."""
    for wal in list(data.glob("journal-*-wal")):
        wal.unlink()

    saved = store("export", "--skip-damaged", data)

    assert (saved.returncode, saved.stdout) == (1, "")
    assert saved.stderr.splitlines()[-1] == f"kinmqtt: nothing in {data} is readable"


@pytest.mark.parametrize("arguments", [["check"], ["export"], ["export", "--skip-damaged"], ["compact"]])
def test_a_newer_store_is_left_to_the_newer_version(tmp_path: Path, arguments: list[str]) -> None:
    """One line that says so, without advice that would throw it away."""
    data = made(tmp_path / "data")
    with closing(sqlite3.connect(data / name_of(1))) as connection:
        connection.execute("PRAGMA user_version = 9")
    before = content(data)

    said = refusal(store(*arguments, data))

    assert said.startswith(f"{data / name_of(1)} has format 9")
    assert "--skip-damaged" not in said
    assert content(data) == before


@pytest.mark.parametrize("action", ["check", "export", "compact"])
def test_where_there_is_no_store_none_is_made(tmp_path: Path, action: str) -> None:
    """A name with a slip of the finger is told of, and nothing comes about under it."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")

    missing = refusal(store(action, tmp_path / "missing"))
    empty = refusal(store(action, tmp_path / "empty"))
    file = refusal(store(action, tmp_path / "file"))

    where = "the broker's log says where it is: state is kept in …"
    assert missing == f"{tmp_path / 'missing'} is no directory; {where}"
    assert empty == f"{tmp_path / 'empty'} holds no kinmqtt store; {where}"
    assert file == f"{tmp_path / 'file'} is a file, not a directory"
    assert (names(tmp_path), names(tmp_path / "empty")) == (["empty", "file"], [])


@pytest.mark.parametrize("action", ["check", "export", "compact"])
def test_a_running_broker_keeps_its_directory(tmp_path: Path, action: str) -> None:
    """What is in use can't be read in peace: the message says by whom it is."""
    with running_broker("--data", str(tmp_path / "data")) as broker:
        said = refusal(store(action, tmp_path / "data"))

    pid = broker.pid
    assert said == f"{tmp_path / 'data'} is in use by process {pid}: stop the broker (process {pid}) first"


def test_a_relative_name_is_told_with_where_it_leads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever stands in another directory than they think sees it."""
    monkeypatch.chdir(tmp_path)

    said = refusal(store("check", "data"))

    assert said.startswith(f"data ({tmp_path / 'data'}) is no directory; ")


def test_a_directory_that_a_broker_kept_nothing_in_is_empty(tmp_path: Path) -> None:
    """It is a store all the same: it can be checked, exported and compacted, with nothing in it."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "lock").write_text("17\n")

    check, export, compact = (store(action, data) for action in ("check", "export", "compact"))

    assert [done.returncode for done in (check, export, compact)] == [0, 0, 0]
    assert check.stdout.splitlines()[0] == "sessions: 0"
    assert check.stdout.splitlines()[-1] == "the store is empty: a broker used the directory but stored nothing"
    assert compact.stdout == "the store is empty: a broker used the directory but stored nothing\n"
    assert take(tmp_path / "new", export.stdout).returncode == 0
    assert names(data) == ["lock"]


def test_a_strangers_directory_is_told_of(tmp_path: Path) -> None:
    """Whoever looks for a store is not told to name an empty directory."""
    segments = made(tmp_path / "data")
    (segments / "notes.txt").touch()

    said = refusal(store("check", segments))

    assert said == f"{segments} holds 'notes.txt', which is not kinmqtt's: no broker has used this directory"


# Export and import


def test_an_export_tells_everything(data: Path) -> None:
    """Each sort of thing has its lines, in the order of the format."""
    lines = [json.loads(line) for line in exported(data)]

    kinds = [line.get("kind") for line in lines]
    assert lines[0] == {"kinmqtt_store": 1}
    assert kinds[1:] == [
        "epochs", "session", "session", "queue", "inflight", "inflight", "queued", "queue", "retained",
        *["event"] * 6, "end",
    ]  # fmt: skip
    of = {kind: [line for line in lines if line.get("kind") == kind] for kind in kinds}
    sub, pub = (line["session"] for line in of["session"])
    assert [each["filter"] for each in sub["subscriptions"]] == ["a/#", "b"]
    assert sub["subscriptions"][1]["share_group"] == "g"
    assert (pub["client_id"], pub["expiry_s"], pub["protocol_version"]) == ("pub", 3600, 5)
    assert pub["will"]["delay_s"] == 1000
    assert pub["will"]["message"]["payload"] == "/wA="
    assert pub["will"]["message"]["properties"]["user_property"] == [["a", "1"], ["a", "2"]]
    assert [(line["packet_id"], line["stage"]) for line in of["inflight"]] == [(1, "sent"), (2, "released")]
    assert of["inflight"][0]["entry"]["message"]["topic"] == "a/1"
    assert of["queued"][0]["message"]["payload"] == "Mw=="
    assert [line["inbound"] for line in of["queue"]] == [[], [2]]
    assert of["retained"][0]["version"]["counter"] == of["retained"][0]["message"]["id"]["counter"]
    assert [line["offset"] for line in of["event"]] == list(range(6))
    assert lines[-1] == {"kind": "end", "lines": len(lines)}


@pytest.mark.parametrize("source", ["of a broker", "made"])
def test_what_was_imported_exports_alike(data: Path, tmp_path: Path, source: str) -> None:
    """An export that went through an import is the same, line by line."""
    path = data if source == "of a broker" else made(tmp_path / "made")
    before = exported(path)

    done = take(tmp_path / "some" / "new", "\n".join(before))

    assert (done.returncode, done.stderr) == (0, b"")
    assert b" sessions, " in done.stdout
    assert exported(tmp_path / "some" / "new") == before
    assert names(tmp_path / "some" / "new") == [name_of(1), "lock"]
    assert (tmp_path / "some" / "new").stat().st_mode & 0o777 == 0o700


def test_a_made_export_is_what_was_made(tmp_path: Path) -> None:
    """What the lines say is what the SPI's values say: that the two ends agree is not enough."""
    lines = [json.loads(line) for line in exported(made(tmp_path / "data"))]

    def of(kind: str, **fields: object) -> list[dict[str, Any]]:
        return [
            line for line in lines if line.get("kind") == kind and all(line[name] == fields[name] for name in fields)
        ]

    sent = InflightEntry(5, 10, Stage.SENT, Entry(5, message(1, BIG), 1, identifiers=(4,)))
    assert [line["epoch"] for line in of("session")] == [3, 1, 2]
    assert [line["session"]["client_id"] for line in of("session")] == ["a", "\u00fc\n/#", "drained"]
    assert of("epochs") == [{"kind": "epochs", "floor": 4_000_000}]
    assert of("queue", client_id="a") == [
        {"kind": "queue", "client_id": "a", "epoch": 3, "last_sequence": 9, "inbound": [1, 65_535]}
    ]
    assert of("inflight") == [
        {"kind": "inflight", "client_id": "a"} | to_plain(each)
        for each in (InflightEntry(9, 11, Stage.RELEASED, None), sent)
    ]
    assert [line["sequence"] for line in of("queued", client_id="a")] == [6, 7, 8]
    assert of("retained")[3] == {"kind": "retained"} | to_plain(
        RetainWrite(message(3, BIG), RetainVersion(3, 2**63, 3))
    )
    assert of("event")[1]["event"]["data"] == {
        "bytes": {"$base64": "/w=="},
        "odd": {"$object": {"$base64": "x"}},
        "rate": 0.5,
    }
    assert [(line["group"], line["offset"]) for line in of("consumer")] == [("audit", 1), ("none yet", -1)]


def test_a_broker_goes_on_with_what_was_imported(data: Path, tmp_path: Path) -> None:
    """Clients come back to their sessions as if nothing had been between."""
    assert take(tmp_path / "new", "\n".join(exported(data))).returncode == 0

    assert what_comes(tmp_path / "new") == what_comes(data)


def what_comes(data: Path) -> list[tuple[Any, ...]]:
    """What a broker sends to a client that comes back, and to one that asks for what is retained."""
    with running_broker("--data", str(data)) as broker:
        with wire(broker.port) as sub:
            assert sub.connect("sub", **KEPT).session_present
            came = [sub.receive() for _ in range(3)]
        with wire(broker.port, "new") as new:
            new.subscribe("state")
            retained = new.expect(Publish)
    assert (retained.payload, retained.retain) == (BIG, True)
    assert [packet.packet_id for packet in came if isinstance(packet, Pubrel)] == [2]
    sent = [(p.topic, p.payload, p.dup, p.packet_id) for p in came if isinstance(p, Publish)]
    assert sent[0] == ("a/1", b"1", True, 1)
    assert [payload for _, payload, _, _ in sent] == [b"1", b"3"]
    return [(type(packet), *sent) for packet in came]


@pytest.mark.parametrize("action", ["export", "compact"])
def test_what_is_damaged_is_refused(data: Path, action: str) -> None:
    """Neither says half of it as if it were all, and compacting does not throw the other half away."""
    path = damage(data)
    before = content(data)

    said = refusal(store(action, data))

    assert said.startswith(f"{path}: row ")
    assert "its checksum is wrong" in said
    assert content(data) == before


def test_what_is_left_of_a_damaged_store_can_be_saved(data: Path, tmp_path: Path) -> None:
    """The way on that the refusal names: all but what is damaged comes into a new directory."""
    whole = exported(data)
    path = damage(data)

    saved = store("export", "--skip-damaged", data)
    done = take(tmp_path / "new", saved.stdout)

    assert saved.returncode == 0
    left_out, summary = saved.stderr.splitlines()
    assert left_out.startswith(f"kinmqtt: left out: {path}: row ")
    assert re.fullmatch(r"kinmqtt: saved: \d+ rows; something was left out of 1 of 1 segments", summary)
    assert done.returncode == 0, done.stderr
    left = exported(tmp_path / "new")
    assert all('"topic":"state","payload"' not in line for line in left)
    assert any('"topic":"state","payload"' in line for line in whole)
    kinds = ("queue", "inflight", "queued")
    assert [line for line in left if json.loads(line).get("kind") in kinds] == [
        line for line in whole if json.loads(line).get("kind") in kinds
    ]


def test_a_closed_pipe_is_quiet(tmp_path: Path) -> None:
    """`kinmqtt store export DIRECTORY | head -1` complains of nothing."""
    data = made(tmp_path / "data")
    process = subprocess.Popen(
        [sys.executable, "-m", "kinmqtt", "store", "export", str(data)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout is not None
    assert process.stderr is not None

    first = process.stdout.readline()
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()

    assert (first, said) == (b'{"kinmqtt_store":1}\n', b"")
    assert process.wait(TIME_LIMIT_S) == 1


@pytest.mark.parametrize("before", ["a store", "something else", "a file"])
def test_a_used_directory_takes_no_import(data: Path, tmp_path: Path, before: str) -> None:
    """An import never touches what is there, whosever it is."""
    lines = "\n".join(exported(data))
    other = tmp_path / "other"
    if before == "a file":
        other.write_text("x")
    elif before == "something else":
        other.mkdir()
        (other / "notes.txt").write_text("x")
    path = data if before == "a store" else other
    was = content(path) if path.is_dir() else path.read_bytes()

    said = refusal(take(path, lines))

    assert said.startswith({
        "a store": f"{path} holds a store already: name a new directory, or an empty one",
        "something else": f"{path} holds 'notes.txt', which is not kinmqtt's",
        "a file": f"{path} can't be used as data directory: ",
    }[before])  # fmt: skip
    assert (content(path) if path.is_dir() else path.read_bytes()) == was
    assert not (other / "lock").exists()


ENTRY = to_plain(Entry(1, message(1), 1))
HEAD: list[Any] = [{"kinmqtt_store": 1}, {"kind": "epochs", "floor": 0}]
QUEUE = {"kind": "queue", "client_id": "a", "epoch": 1, "last_sequence": 3, "inbound": []}
SESSION = {"kind": "session", "epoch": 1, "session": to_plain(StoredSession("a", 5))}
OUTBOX = {"kind": "session", "epoch": 1, "session": to_plain(StoredSession("$outbox/n/p", 5))}
RETAINED = {"kind": "retained", **to_plain(RetainWrite(message(1), RetainVersion(1.0, 1, 1)))}
EVENT = {
    "kind": "event",
    **to_plain(Recorded(4, Event(EventKind.CONNECT, "c", EventVersion(1, 1), 1.0, {}))),
}
QUEUED = {"kind": "queued", "client_id": "a", **ENTRY}
SENT = {"kind": "inflight", "client_id": "a", **to_plain(InflightEntry(2, 7, Stage.RELEASED, None))}


def without(line: dict[str, Any], name: str) -> dict[str, Any]:
    """A line that lacks a field."""
    return {key: value for key, value in line.items() if key != name}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "line 1: there is nothing to read: an export begins with {"),
        (["{"], "line 1: this is no JSON: "),
        ([b"\xff"], "line 1: this is no JSON: "),
        (["[" * 100_000], "line 1: this is no JSON: "),
        (["[]"], "line 1: expected an object"),
        ([{"mosquitto": 1}], "line 1: this is no export of a kinmqtt store"),
        ([{"kinmqtt_store": True}], "line 1: this is no export of a kinmqtt store"),
        ([{"kinmqtt_store": 2}], "line 1: this export has format 2, this kinmqtt knows format 1"),
        ([*HEAD], "line 3: the export ends here, without a line of kind end: it was cut short"),
        ([*HEAD, ""], "line 3: this is no JSON: "),
        ([*HEAD, {"kind": "end", "lines": 4}], "line 3: the export has 4 lines, and this is line 3"),
        ([*HEAD, {"kind": "end", "lines": 3}, QUEUE], "line 4: something comes after the last line"),
        ([*HEAD, {"epoch": 1}], "line 3: kind is missing"),
        ([*HEAD, {"kind": ["session"]}], "line 3: kind: expected a string"),
        ([*HEAD, {"kind": "lunch"}], "line 3: kind 'lunch' is not known"),
        ([*HEAD, '{"kind": "queue", "kind": "queue"}'], "line 3: kind is there twice"),
        ([*HEAD, '{"kind": "epochs", "floor": NaN}'], "line 3: this is no JSON: NaN is no number"),
        ([*HEAD, {"kind": "epochs", "floor": -1}], "line 3: floor: expected a whole number not below 0"),
        ([*HEAD, {"kind": "epochs", "floor": 1, "roof": 2}], "line 3: roof is no known field"),
        ([*HEAD, without(SESSION, "epoch")], "line 3: epoch is missing"),
        ([*HEAD, without(SESSION, "session")], "line 3: session is missing"),
        ([*HEAD, {**SESSION, "session": {}}], "line 3: session.client_id is missing"),
        ([*HEAD, SESSION, SESSION], "line 4: session.client_id: 'a' has a session already"),
        ([*HEAD, OUTBOX], "line 3: session.client_id: '$outbox/n/p' is no outbox's: expected $outbox/<node>/<plug"),
        ([*HEAD, {**QUEUE, "client_id": None}], "line 3: client_id: expected a string"),
        ([*HEAD, {**QUEUE, "inbound": 1}], "line 3: inbound: expected a list"),
        ([*HEAD, {**QUEUE, "inbound": [1, 0]}], "line 3: inbound[1]: expected a whole number from 1 to 65535"),
        ([*HEAD, QUEUE, QUEUE], "line 4: client_id: 'a' has a queue already"),
        ([*HEAD, QUEUED], "line 3: client_id: no line of kind queue speaks of 'a' before this one"),
        ([*HEAD, QUEUE, without(QUEUED, "message")], "line 4: queued.message is missing"),
        ([*HEAD, QUEUE, {**QUEUED, "sequence": 4}], "line 4: sequence: expected a whole number from 1 to last_seq"),
        ([*HEAD, QUEUE, {**QUEUED, "sequence": 0}], "line 4: sequence: expected a whole number from 1 to last_seq"),
        ([*HEAD, QUEUE, QUEUED, QUEUED], "line 5: sequence: 1 is there already"),
        ([*HEAD, QUEUE, {**SENT, "packet_id": 0}], "line 4: inflight.packet_id: expected a whole number from 1"),
        ([*HEAD, QUEUE, SENT, {**SENT, "sequence": 3}], "line 5: inflight.packet_id: 7 is in flight already"),
        ([*HEAD, without(RETAINED, "version")], "line 3: retained.version is missing"),
        ([*HEAD, RETAINED, RETAINED], "line 4: retained.message.topic: 't/1' has a retained message already"),
        ([*HEAD, {**EVENT, "offset": "4"}], "line 3: event.offset: expected a whole number, not a string"),
        ([*HEAD, EVENT, EVENT], "line 4: event.offset: expected more than 4, the offset before"),
        ([*HEAD, {"kind": "consumer", "group": "g", "offset": -2}], "line 3: offset: expected a whole number"),
        ([*HEAD, *[{"kind": "consumer", "group": "g", "offset": 1}] * 2], "line 4: group: 'g' has an offset already"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_line_is_told_of(
    lines: list[Any], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """One message with the number of the line, exit status 1, and nothing left behind."""
    from kinmqtt.cli.main import main

    parts = [
        line if isinstance(line, bytes) else (line if isinstance(line, str) else json.dumps(line)).encode()
        for line in lines
    ]
    (tmp_path / "input").write_bytes(b"".join(part + b"\n" for part in parts))

    with (tmp_path / "input").open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        status = main(["store", "import", str(tmp_path / "some" / "new")])

    out, error = capsys.readouterr()
    [line] = error.splitlines()
    assert (status, out) == (1, "")
    assert line.startswith(f"kinmqtt: {said}")
    assert names(tmp_path) == ["input"]


def test_a_wrong_line_leaves_nothing_behind(data: Path, tmp_path: Path) -> None:
    """The same in a process of its own, with a mistake far behind: what was read before is not kept either."""
    lines = exported(data)
    lines[-2] = lines[-2].replace('"at":', '"when":')

    said = refusal(take(tmp_path / "new", "\n".join(lines)))
    (tmp_path / "empty").mkdir()
    again = refusal(take(tmp_path / "empty", "\n".join(lines)))

    assert said == f"line {len(lines) - 1}: event.event.when is no known field"
    assert again == said
    assert not (tmp_path / "new").exists()
    assert names(tmp_path / "empty") == []


def test_an_export_that_was_cut_short_is_refused(data: Path, tmp_path: Path) -> None:
    """However much of it there is: a copy that lacks something must not pass for the whole."""
    text = "\n".join(exported(data))

    said = refusal(take(tmp_path / "new", text[: text.rindex('{"kind":"end"')]))
    within = refusal(take(tmp_path / "new", text[:-1]))

    assert said.endswith("without a line of kind end: it was cut short")
    assert within == f"line {len(text.splitlines())}: the export was cut short within this line"
    assert not (tmp_path / "new").exists()


# What goes wrong, and when

PATCHED = """
import os, signal, sqlite3, sys
from kinmqtt.builtins.embedded import segment
from pathlib import Path

def at(holder, name, number, how):
    call = getattr(holder, name)
    count = 0
    def patched(*arguments, **more):
        nonlocal count
        count += 1
        if count == number and how != "after":
            end(how)
        result = call(*arguments, **more)
        if count == number:
            end("kill")
        return result
    setattr(holder, name, patched)

def end(how):
    if how == "full":
        raise sqlite3.OperationalError("database or disk is full")
    if how == "failing":
        raise OSError(5, "Input/output error")
    os.kill(os.getpid(), signal.SIGKILL)

place, name, number, how = sys.argv[1:5]
at({"segment": segment.Segment, "module": segment, "path": Path}[place], name, int(number), how)
from kinmqtt.cli.main import main
sys.exit(main(sys.argv[5:]))
"""


def patched(place: str, name: str, number: int, how: str, *arguments: str, text: str = "") -> int:
    """Run the command with something that goes wrong at a call; answers the exit status."""
    done = subprocess.run(
        [sys.executable, "-c", PATCHED, place, name, str(number), how, *arguments],
        input=text,
        text=True,
        capture_output=True,
        timeout=TIME_LIMIT_S,
        env=environment(),
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    if how == "full":
        assert re.search(
            r" has too little space: this needs about \d+ bytes there; the store is unchanged$", done.stderr
        )
    return done.returncode


def test_a_compacted_store_holds_the_same(data: Path, tmp_path: Path) -> None:
    """One plain file is left, everything in it; how much smaller it is, is told."""
    before = {path: exported(path) for path in (data, made(tmp_path / "made"))}

    done = {path: store("compact", path) for path in before}

    for path, lines in before.items():
        assert (done[path].returncode, done[path].stderr) == (0, "")
        assert exported(path) == lines
        assert len(names(path)) == 2
        first, second = done[path].stdout.splitlines()
        assert first.startswith("bytes before: ")
        [size] = [file.stat().st_size for file in path.glob("journal-*")]
        assert second == f"bytes after: {size}"


def test_compacting_makes_room(tmp_path: Path) -> None:
    """What was said of a topic before counts no more, and takes no place any more."""
    data = made(tmp_path / "data")
    segment = Segment(data, 4)
    for number in range(100):
        segment.append(pack(CommitGroup(retain=[RetainWrite(message(1, BIG), RetainVersion(99.0, 1, number))])))
    segment.seal()

    first, second = store("compact", data).stdout.splitlines()

    assert int(first.rpartition(" ")[2]) > 2_000_000
    assert int(second.rpartition(" ")[2]) < 700_000


def test_a_broker_goes_on_with_what_was_compacted(data: Path) -> None:
    """It begins another segment behind, and all is there after one more restart."""
    other = Path(shutil.copytree(data, data.with_name("other")))
    assert store("compact", data).returncode == 0

    with running_broker("--data", str(data)):
        pass

    assert what_comes(data) == what_comes(other)


MOMENTS = [
    ("segment", "append", 1, "kill"),
    ("segment", "append", 1, "after"),
    ("segment", "append", 2, "after"),
    ("segment", "append", 3, "after"),
    ("segment", "begin_with", 1, "kill"),
    ("segment", "begin_with", 1, "after"),
    ("segment", "seal", 1, "after"),
    ("module", "remove", 1, "kill"),
    ("module", "remove", 1, "after"),
    ("module", "remove", 2, "after"),
    ("path", "unlink", 6, "after"),
]


@pytest.mark.parametrize(("place", "name", "number", "how"), MOMENTS)
def test_compacting_can_be_killed_at_any_moment(tmp_path: Path, place: str, name: str, number: int, how: str) -> None:
    """Everything is there whenever it dies, and the next time it ends well."""
    data = made(tmp_path / "data")
    before = exported(data)

    status = patched(place, name, number, how, "store", "compact", str(data))

    assert status == -signal.SIGKILL
    assert exported(data) == before
    assert store("compact", data).returncode == 0
    assert exported(data) == before
    assert len(names(data)) == 2


@pytest.mark.parametrize(("name", "how"), [("append", "full"), ("begin_with", "full"), ("seal", "failing")])
def test_compacting_without_room_changes_nothing(tmp_path: Path, name: str, how: str) -> None:
    """A disk that is full is told of, and the old segments stay."""
    data = made(tmp_path / "data")
    before = content(data)

    status = patched("segment", name, 1, how, "store", "compact", str(data))

    assert status == 1
    assert content(data) == before


@pytest.mark.parametrize(
    ("name", "how"), [("append", "kill"), ("begin_with", "after"), ("seal", "after"), ("append", "full")]
)
def test_an_import_that_ends_early_leaves_no_store(data: Path, tmp_path: Path, name: str, how: str) -> None:
    """Killed or without room: there is all of it or nothing, and it can be repeated."""
    lines = exported(data)
    path = tmp_path / "new"

    status = patched("segment", name, 1, how, "store", "import", str(path), text="\n".join(lines))

    assert status == (1 if how == "full" else -signal.SIGKILL)
    if how == "full":
        assert not path.exists()
    else:
        assert refusal(store("check", path)) == f"{path} holds an incomplete import: import again"
    assert take(path, "\n".join(lines)).returncode == 0
    assert exported(path) == lines
    assert names(path) == [name_of(1), "lock"]


# The command line


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["look"],
        ["check"],
        ["check", "a", "b"],
        ["check", "--skip-damaged", "a"],
        ["import", "--skip-damaged", "a"],
        ["check", ""],
        ["import", "memory"],
    ],
)
def test_usage(arguments: list[str]) -> None:
    """A command line that is none is answered with its usage and exit status 2."""
    done = run_command("store", *arguments)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: kinmqtt")
    assert "Traceback" not in done.stderr


def test_an_export_is_no_argument() -> None:
    """The usage is that of the command that was meant, and says where the export comes from."""
    done = run_command("store", "import", "new", "state.jsonl")

    assert done.returncode == 2
    assert done.stderr.startswith("usage: kinmqtt store import ")
    assert done.stderr.endswith("unrecognized arguments: state.jsonl; the export is read from standard input\n")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("export {data} > /dev/full", "standard output: No space left on device"),
        ("check {data} > /dev/full", "standard output: No space left on device"),
        ("check {data} >&-", "standard output is closed"),
        ("import {data}/new <&-", "standard input is closed"),
    ],
)
def test_streams_that_do_not_work_are_told_of(tmp_path: Path, line: str, said: str) -> None:
    """In one line, which does not put it down to the store."""
    data = made(tmp_path / "data")
    command = f"{sys.executable} -m kinmqtt store {line.format(data=data)}"

    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, timeout=TIME_LIMIT_S, env=environment(), check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"kinmqtt: {said}\n")


def test_help() -> None:
    """Help says what each of the four does."""
    done = run_command("store", "--help")

    assert (done.returncode, done.stderr) == (0, "")
    assert all(word in done.stdout for word in ("check", "export", "import", "compact"))


def test_no_reactor_is_needed(tmp_path: Path) -> None:
    """The command needs no event loop, and imports none."""
    program = (
        "import sys\nfrom kinmqtt.cli.main import main\n"
        "assert main(['store', 'check', sys.argv[1]]) == 0\n"
        "assert 'twisted.internet.reactor' not in sys.modules\n"
        "assert 'kinmqtt.cli.run' not in sys.modules\n"
    )

    done = run_command(str(made(tmp_path / "data")), program=(sys.executable, "-c", program))

    assert (done.returncode, done.stderr) == (0, "")
