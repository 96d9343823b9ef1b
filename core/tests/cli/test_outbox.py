"""`kinmqtt outbox` as an operator sees it, over a directory that a broker has left, and what a later broker sends."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from base64 import b64decode
from collections.abc import Callable, Coroutine, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.testing import MemoryReactorClock

from core_harness.brokers import run_command, running_broker
from core_harness.file_sink import Line, installed, lines_in
from core_harness.wire import wire
from kinmqtt.builtins.embedded.directory import DataDirectory
from kinmqtt.cli.main import main
from kinmqtt.cli.outbox.stores import OutboxStores
from kinmqtt.mqtt.packets import Puback
from spi_harness.processes import environment, wait_until

WAITING = ("wait 1", "wait 2")
PARKED = ("bad 1", "bad 2", "bad 3")
BIG = "x" * 20_000
"""The end of a payload that a damage can be aimed at."""

CRASHING = """
import os, signal, sys
from kinmqtt.cli.main import main
from kinmqtt.cli.outbox import stores, unparking

left = int(sys.argv.pop(1))
unparking.PAGE = 2
write = stores.OutboxStores.write

async def dying(self, *arguments, **more):
    global left
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    await write(self, *arguments, **more)

stores.OutboxStores.write = dying
sys.exit(main())
"""
"""The command with pages of two messages; it is killed before a write."""


class Done(NamedTuple):
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


def at_once(reactor: Any, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run a coroutine that waits for nothing but this process."""
    outcome: list[Any] = []
    Deferred.fromCoroutine(work()).addBoth(outcome.append)
    if hasattr(outcome[0], "raiseException"):
        outcome[0].raiseException()
    return outcome[0]


@pytest.fixture(scope="module")
def command() -> Callable[..., Done]:
    """Run the command in this process: without a reactor that runs, and with threads that are none."""

    def run(*arguments: str, input: str = "") -> Done:
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.setattr("kinmqtt.cli.main._reactor", lambda settings: MemoryReactorClock())
            patch.setattr("kinmqtt.cli.run.deferToThread", maybeDeferred)
            patch.setattr("kinmqtt.cli.outbox.actions.deferToThread", maybeDeferred)
            patch.setattr("kinmqtt.cli.outbox.actions.run_once", at_once)
            patch.setattr("kinmqtt.cli.outbox.actions._show_warnings", lambda: None)
            patch.setattr("sys.stdin", io.StringIO(input))
            status = main(list(arguments))
        return Done(status, out.getvalue(), err.getvalue())

    return run


class Site(NamedTuple):
    """The settings of a broker whose sink appends to a file, and its directory."""

    folder: Path
    path: str
    """The PYTHONPATH with the sink's plugin."""
    command: Callable[..., Done]
    """Runs ``kinmqtt`` in this process."""

    @property
    def data(self) -> Path:
        """The data directory."""
        return self.folder / "data"

    @property
    def env(self) -> dict[str, str]:
        """The environment of its processes."""
        return environment(PYTHONPATH=self.path)

    @property
    def lines(self) -> list[Line]:
        """What the sink got."""
        return lines_in(self.folder / "lines")

    def settings(self, more: str = "") -> list[str]:
        """The options for a broker, or a command, with more settings of the plugin."""
        file = self.folder / "kinmqtt.toml"
        file.write_text(
            f'[broker]\nnode_name = "n1"\n[plugins.file_sink]\nfile = "{self.folder / "lines"}"\n{more}\n',
            encoding="utf-8",
        )
        return ["-c", str(file), "--data", str(self.data)]

    def outbox(self, action: str, *arguments: str, more: str = "", input: str = "") -> Done:
        """Run the command with these settings, in this process."""
        return self.command("outbox", action, *self.settings(more), *arguments, input=input)

    def listed(self) -> list[dict[str, Any]]:
        """The answer of `list --json`."""
        done = self.outbox("list", "--json")
        assert (done.returncode, done.stderr) == (0, "")
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found

    def counts(self) -> tuple[int, int]:
        """How many messages wait, and how many are parked."""
        [outbox] = self.listed()
        return outbox["messages"], outbox["parked"]["messages"]

    def run(self, more: str = "", publish: tuple[str, ...] = (), until: Callable[[], object] | None = None) -> None:
        """Run a broker with a publisher, until something is so."""
        with running_broker(*self.settings(more), env=self.env) as broker:
            if publish:
                with wire(broker.port, "p") as publisher:
                    for number, payload in enumerate(publish, 1):
                        publisher.publish("t", payload.encode(), 1, packet_id=number).expect(Puback)
            if until is not None:
                wait_until(until, "the sink has it")


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory, command: Callable[..., Done]) -> Iterator[Site]:
    """What brokers have left: three parked messages, and two that wait for a sink that is away."""
    folder = tmp_path_factory.mktemp("left")
    site = Site(folder, installed(folder / "site"), command)
    site.run("poison = true", (*PARKED, "good"), lambda: any(line.taken for line in site.lines))
    site.run("away = true", (WAITING[0], WAITING[1] + BIG))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder / "site"))
        yield site


@pytest.fixture
def site(left: Site, tmp_path: Path) -> Site:
    """A copy of it for one test."""
    folder = Path(shutil.copytree(left.folder, tmp_path / "site", ignore=shutil.ignore_patterns("site")))
    return left._replace(folder=folder)


def refusal(done: Done) -> str:
    """The one line that a command was refused with."""
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    [line] = done.stderr.splitlines()
    assert line.startswith("kinmqtt: ")
    return line.removeprefix("kinmqtt: ")


def payloads(lines: list[Line]) -> list[str]:
    """The payloads, without what makes one big."""
    return [line.payload.removesuffix(BIG) for line in lines]


def messages(export: Done) -> list[tuple[str, str]]:
    """The payloads and ids of an export's messages."""
    lines = [json.loads(line) for line in export.stdout.splitlines()]
    found = [line["entry"] if line["kind"] == "inflight" else line for line in lines[1:] if "sequence" in line]
    return [
        (b64decode(each["message"]["payload"]).decode(), "{node:x}-{counter}".format(**each["message"]["id"]))
        for each in found
    ]


def crash(site: Site, before_write: int, *arguments: str) -> None:
    """Run the command, and kill it before one of its writes."""
    done = run_command(
        str(before_write),
        "outbox",
        *arguments,
        *site.settings(),
        program=(sys.executable, "-c", CRASHING),
        env=site.env,
    )
    assert done.returncode == -9, done.stderr


# List


def test_a_list_as_json_has_these_fields(site: Site) -> None:
    """A program reads it: each field is there, with numbers as numbers."""
    [outbox] = site.listed()

    parked = outbox.pop("parked")
    assert outbox.pop("bytes") > len(BIG)
    assert 0 < outbox.pop("oldest_s") <= parked.pop("oldest_s")
    assert parked.pop("bytes") > 0
    assert parked == {"messages": 3}
    assert outbox == {
        "node": "n1",
        "plugin": "file_sink",
        "name": "lines",
        "client_id": "$outbox/n1/file_sink/lines",
        "messages": 2,
        "in_flight": 2,
        "in_use": False,
        "waits_for": "the start of a broker",
    }


def test_a_list_has_a_line_for_each_outbox(site: Site) -> None:
    """An operator reads it: with headings, and what each outbox waits for."""
    done = site.outbox("list", more='sink = "others"')

    headings, line = done.stdout.splitlines()
    assert " ".join(headings.split()) == "node outbox messages bytes in flight oldest parked waits for"
    assert line.split()[:3] == ["n1", "file_sink:lines", "2"]
    assert line.endswith("the plugin file_sink itself, or a sink lines, which is not in these settings")


def test_a_list_names_a_plugin_that_is_gone(site: Site) -> None:
    """Only the directory is known, and what is in it is shown all the same."""
    done = run_command("outbox", "list", "--data", str(site.data))

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("the plugin file_sink, which is not active in these settings\n")


# Export


def test_an_export_can_be_imported_and_is_sent_from_there(site: Site, tmp_path: Path) -> None:
    """It is an export of a store with one outbox; nothing is removed from the old one."""
    before = len(site.lines)
    file = site.folder / "out.jsonl"
    done = site.outbox("export", "lines", "--to", str(file))
    again = site.outbox("export", "file_sink:lines")
    other = site._replace(folder=tmp_path / "other")
    other.folder.mkdir()

    imported = run_command("store", "import", str(other.data), input=file.read_text("ascii"))
    other.run(until=lambda: len(other.lines) >= len(WAITING))

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert file.stat().st_mode & 0o777 == 0o600
    assert again.stdout == file.read_text("ascii")
    assert imported.returncode == 0, imported.stderr
    assert payloads(other.lines) == list(WAITING)
    assert (site.counts(), len(site.lines)) == ((2, 3), before)
    assert f"{file} is there already" in refusal(site.outbox("export", "lines", "--to", str(file)))


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), KeyboardInterrupt()])
def test_an_export_that_fails_leaves_no_file(
    site: Site, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Neither the file nor a part of it, whatever failed; an error of the store is not told as one of the file."""
    file = site.folder / "out.jsonl"

    async def waiting(self: OutboxStores, client_id: str, after: int) -> None:
        """Fail when lines are written already."""
        assert [each.name for each in site.folder.glob("out*")] == ["out.jsonl.partial"]
        raise error

    monkeypatch.setattr(OutboxStores, "waiting", waiting)
    with pytest.raises(type(error)):
        site.outbox("export", "lines", "--to", str(file))

    assert list(site.folder.glob("out*")) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a file that is always full")
def test_an_export_that_can_not_be_written_leaves_no_file(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line names the file, and not a store."""
    file = site.folder / "out.jsonl"
    opened = os.open
    flags = os.O_WRONLY

    def full(path: Any, *arguments: Any) -> int:
        """Open the file, and return a full disk."""
        if not str(path).endswith(".partial"):
            return opened(path, *arguments)
        os.close(opened(path, *arguments))
        return opened("/dev/full", flags)

    monkeypatch.setattr("kinmqtt.cli.outbox.actions.os.open", full)

    assert refusal(site.outbox("export", "lines", "--to", str(file))) == (
        f"--to: {file} can't be written to: No space left on device"
    )
    assert list(site.folder.glob("out*")) == []


def test_parked_messages_are_exported_with_their_reason(site: Site) -> None:
    """Each line is that of `kinmqtt store export`, with the payload in base64."""
    done = site.outbox("export", "lines", "--parked")

    found = [json.loads(line) for line in done.stdout.splitlines()]
    [first, *_] = [line["message"] for line in found[1:] if line["kind"] == "queued"]
    assert [payload for payload, _ in messages(done)] == list(PARKED)
    assert first["payload"] == "YmFkIDE="
    assert first["properties"]["user_property"] == [["kinmqtt-poison", "it is bad"]]
    assert found[-1] == {"kind": "end", "lines": len(found)}


# Drop


def test_a_drop_removes_the_messages_and_leaves_the_parked_ones(site: Site) -> None:
    """The next broker makes the outbox anew, and sends only what it gets."""
    before = len(site.lines)

    done = site.outbox("drop", "n1/file_sink/lines", "--yes")
    counts = site.counts()
    site.run(publish=("new",), until=lambda: len(site.lines) > before)

    first, second = done.stdout.splitlines()
    assert first.startswith("dropped 2 messages of file_sink:lines, node n1: ") and first.endswith(" bytes")
    assert second.startswith("3 parked messages stay")
    assert counts == (0, 3)
    assert payloads(site.lines)[before:] == ["new"]


def test_a_drop_asks_for_the_number_of_messages(site: Site) -> None:
    """Any other answer, or none, changes nothing."""
    answers = [site.outbox("drop", "lines", "--parked", input=answer) for answer in ("", "y\n", "3\n")]

    assert [done.returncode for done in answers] == [1, 1, 0]
    assert "nothing is dropped: expected 3 (or --yes), not 'y'" in answers[1].stderr
    assert answers[2].stdout.startswith("dropped 3 parked messages of file_sink:lines, node n1: ")
    assert site.counts() == (2, 0)


# Unpark


def test_unparked_messages_are_sent_with_their_ids_after_those_that_wait(site: Site) -> None:
    """Consumers know what they had before by its id; the reason is not sent."""
    before = site.lines
    ids = {line.payload: line.id for line in before}

    done = site.outbox("unpark", "lines")
    counts = site.counts()
    site.run(until=lambda: len(site.lines) >= len(before) + 5)

    sent = site.lines[len(before) :]
    assert done.stdout == "3 parked messages are in the outbox of file_sink:lines again, after those that wait\n"
    assert counts == (5, 0)
    assert payloads(sent) == [*WAITING, *PARKED]
    assert [line.id for line in sent[2:]] == [ids[payload] for payload in PARKED]
    assert {line.user_properties for line in sent} == {0}
    assert "no parked messages" in refusal(site.outbox("unpark", "lines"))


def test_parked_messages_stay_where_the_outbox_has_no_room(site: Site) -> None:
    """The bounds are those of the sink's settings; what is in flight does not count."""
    bounds = "outbox = { max_messages = 2 }"
    dropped = site.outbox("drop", "lines", "--yes")
    done = site.outbox("unpark", "lines", more=bounds)
    counts = site.counts()
    full = site.outbox("unpark", "lines", more=bounds)

    assert dropped.returncode == 0
    assert done.stdout.splitlines()[1].startswith("1 parked messages stay: its outbox is full (max_messages = 2,")
    assert counts == (2, 1)
    assert "all 1 parked messages stay: its outbox is full" in refusal(full)


def test_a_kill_at_any_write_loses_no_message(site: Site) -> None:
    """A message is in the outbox before it is removed from the parked ones: a kill in between doubles it."""
    ids = {line.payload: line.id for line in site.lines}
    crash(site, 0, "drop", "lines", "--yes")
    crash(site, 1, "unpark", "lines")
    doubled = site.counts()
    crash(site, 3, "unpark", "lines")
    last = site.counts()
    done = site.outbox("unpark", "lines")
    again = messages(site.outbox("export", "lines"))[2:]

    assert (doubled, last, done.returncode) == ((4, 3), (7, 1), 0)
    assert [payload for payload, _ in again] == ["bad 1", "bad 2", "bad 1", "bad 2", "bad 3", "bad 3"]
    assert all(id == ids[payload] for payload, id in again)


# Refusals


def test_an_unknown_name_gets_the_nearest_one(site: Site) -> None:
    """The sentence names where was looked, too."""
    assert refusal(site.outbox("drop", "lnes", "--yes")) == (f"{site.data} has no outbox 'lnes'; did you mean lines?")
    assert "has no outbox 'orders'; it has file_sink:lines" in refusal(site.outbox("export", "orders"))
    assert "has the parked messages of lines: `unpark lines`" in refusal(site.outbox("export", "lines.parked"))


def test_unpark_needs_the_sink_in_the_settings(site: Site) -> None:
    """Else its bounds are unknown, and nobody would take the messages."""
    assert "is no sink of these settings" in refusal(site.outbox("unpark", "lines", more='sink = "others"'))


def test_a_directory_in_use_is_refused(site: Site) -> None:
    """The process is named; nothing is read or written beside it."""
    directory = DataDirectory(site.data)
    directory.open()
    try:
        refused = [refusal(site.outbox(*words)) for words in (("list",), ("drop", "lines", "--yes"))]
    finally:
        directory.close()

    assert all("is in use by process " in text and text.endswith("stop the broker first") for text in refused)


def test_a_directory_that_no_broker_has_used_is_not_made(site: Site, tmp_path: Path) -> None:
    """A mistyped name must not look like an empty store."""
    missing, foreign = tmp_path / "missing", tmp_path / "foreign"
    foreign.mkdir()

    refused = [
        refusal(site.command("outbox", "list", "-P", "no:file_sink", "--data", each))
        for each in (str(missing), str(foreign), "memory")
    ]

    assert f"{missing} is no directory" in refused[0]
    assert f"{foreign} holds no kinmqtt store" in refused[1]
    assert "keep sessions or queues in memory" in refused[2]
    assert not missing.exists()


def test_a_damaged_store_is_refused_as_a_check_says(site: Site) -> None:
    """Nothing is changed, and the sentence has the ways on."""
    DataDirectory(site.data).tidy()
    [file] = [each for each in site.data.glob("journal-*") if BIG[:3000].encode() in each.read_bytes()][:1]
    whole = bytearray(file.read_bytes())
    whole[whole.index(BIG[:3000].encode()) + 1000] ^= 1
    file.write_bytes(whole)

    refused = refusal(site.outbox("drop", "lines", "--yes"))

    [problem, *_] = run_command("store", "check", str(site.data)).stderr.splitlines()
    assert refused.startswith(problem.removeprefix("kinmqtt: "))
    assert "--skip-damaged" in refused
    assert bytes(whole) == file.read_bytes()
