"""The plugin by itself: what each hook becomes, its life, reloads, and what it tells of itself."""

from __future__ import annotations

import errno
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from twisted.internet.defer import Deferred

from kinmqtt_metrics import MetricsSink
from kinmqtt_metrics import traffic as traffic_module
from kinmqtt_metrics._plugin import STOP_S
from kinmqtt_metrics.disk_writer import LOOK_S, DiskWriter
from kinmqtt_metrics.landing import SegmentName, open_path
from kinmqtt_metrics.line_writer import RETRY_S, STUCK_S, WriterThread
from kinmqtt_metrics.record import EVENTS, FIELDS, OTHERS
from kinmqtt_metrics.segments import Disk, InUse, Lock
from kinmqtt_metrics.settings import CHOICES, MetricsSettings
from kinmqtt_metrics.spool import RECORD_BYTES
from kinmqtt_metrics.traffic import FIND_S, largest
from kinmqtt_spi import ReasonCode
from kinmqtt_spi.errors import AssemblyError, NotConfigured
from kinmqtt_spi.markers import topics_of
from kinmqtt_spi.memory.plugin import BareContext, TurnableClock
from kinmqtt_spi.services.authentication import ConnectRequest
from kinmqtt_spi.services.authorization import Action, AuthorizationRequest
from kinmqtt_spi.services.limiter import LimitDecision, LimitVerdict, Resource, ResourceKind
from kinmqtt_spi.services.metric import CounterSample, Snapshot, Traffic, TrafficSnapshot
from kinmqtt_spi.services.plugin import HealthState
from kinmqtt_spi.testing.driving import TurningDriver
from kinmqtt_spi.values import Address, Client, Maybe, Message, NodeIdentity, Publisher, Subscription
from metrics_harness.broken_disk import BrokenDisk, left_open, records

CLIENT = Client("c", "u", Address("192.0.2.1", 5000), "tcp", 5)
WHO = {"address": "192.0.2.1", "listener": "tcp", "username": "u"}
T = 1_700_000_000_000_000


class Scene:
    """A sink that was started; what it wrote is read when it has stopped."""

    def __init__(
        self, landing: Path, disk: Disk | None = None, node: str = "n", start: bool = True, **more: Any
    ) -> None:
        """``monotonic``: the writer's clock."""
        self.landing = landing
        self.clock = TurnableClock()
        self.drive: Callable[[Maybe[None]], None] = TurningDriver(self.clock)
        self.sink = MetricsSink(disk, more.pop("monotonic", time.monotonic))
        chosen: dict[str, Any] = {"events": CHOICES, "keep_free_bytes": 0} | more
        settings = MetricsSettings(landing=landing, **chosen)
        self.context = BareContext("metrics", settings, clock=self.clock, node=NodeIdentity(node, 0xC0FFEE))
        self.sink.configure(self.context)
        if start:
            self.start()

    def start(self) -> None:
        """As the broker starts it."""
        self.drive(self.sink.start(self.context))

    def stop(self) -> None:
        """As the broker stops it."""
        self.drive(self.sink.stop())

    def told(self) -> list[dict[str, Any]]:
        """What was written between start and stop, without the keys that every record has."""
        self.stop()
        found = records(self.landing)
        assert all(set(record) <= set(FIELDS) for record in found)
        assert [record["seq"] for record in found] == list(range(1, len(found) + 1))
        assert (found[0]["name"], found[-1]["name"]) == ("started", "stopped")
        common = ("v", "node", "boot", "seq")
        return [{key: value for key, value in each.items() if key not in common} for each in found[1:-1]]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """A sink that tells everything."""
    scene = Scene(tmp_path)
    yield scene
    scene.stop()


def event(name: str, **more: Any) -> dict[str, Any]:
    """An event of the moment at which the clock stands first."""
    return {"t": T, "kind": "event", "name": name} | more


# What hooks become


def test_a_connection_is_told_from_its_beginning_to_its_end(scene: Scene) -> None:
    """With who it is, how long it lasted, who ended it and why."""
    scene.sink.connected(CLIENT, False)
    scene.clock.advance(2.5)
    scene.clock.step(-1000)
    scene.sink.disconnected(CLIENT, False, ReasonCode.KEEP_ALIVE_TIMEOUT)
    scene.sink.disconnected(CLIENT, True, ReasonCode.SUCCESS)

    end = {"t": T - 997_500_000, "kind": "event", "name": "disconnected", "client": "c"}
    assert scene.told() == [
        event("connected", labels=WHO | {"protocol": "5", "session": "new"}, client="c"),
        end | {"labels": WHO | {"by": "broker"}, "number": 2.5, "reason": "keep_alive_timeout"},
        end | {"labels": WHO | {"by": "client"}, "reason": "success"},
    ]


def test_a_connection_that_is_lost_is_one_that_ended(scene: Scene) -> None:
    """Without a DISCONNECT."""
    scene.sink.connected(CLIENT, True)
    scene.sink.connection_lost(CLIENT)

    assert scene.told()[1:] == [
        event("disconnected", labels=WHO | {"by": "network"}, number=0.0, client="c", reason="connection_lost")
    ]


def test_rare_events_are_told_one_by_one(scene: Scene) -> None:
    """Each with the client and the topic."""
    scene.sink.session_taken_over(CLIENT, Address("192.0.2.9", 1))
    scene.sink.session_expired("c")
    scene.sink.subscribed(CLIENT, Subscription("a/+", 1, share_group="g"))
    scene.sink.unsubscribed(CLIENT, "a/+")

    assert scene.told() == [
        event("taken_over", labels=WHO | {"old_address": "192.0.2.9"}, client="c"),
        event("session_expired", client="c"),
        event("subscribed", labels={"qos": "1"}, client="c", topic="$share/g/a/+"),
        event("unsubscribed", client="c", topic="a/+"),
    ]


def test_frequent_events_are_summed(scene: Scene) -> None:
    """Over the interval, which ends when the timer goes, or with the broker."""
    for _ in range(3):
        scene.sink.dropped("c", "offline")
        scene.sink.retained(Message("a", b"x", publisher=Publisher("c")))
        scene.sink.retained(Message("$SYS/x", b"1"))
    scene.sink.authorization_refused(AuthorizationRequest(CLIENT, Action.PUBLISH, "a"), "acl")
    scene.clock.advance(5)
    scene.sink.authentication_refused(ConnectRequest("x"), "", ReasonCode.NOT_AUTHORIZED)
    scene.sink.limited(
        Resource(ResourceKind.PUBLISH, "tcp", "192.0.2.1", "c"), LimitDecision(LimitVerdict.REJECT, "r")
    )
    scene.sink.limited(Resource(ResourceKind.CONNECTION, "tcp", "::1"), LimitDecision(LimitVerdict.DELAY, "r", 1.0))
    scene.sink.retain_cleared("a")

    later = {"t": T + 5_000_000}
    assert scene.told() == [
        event("dropped", delta=3, client="c", reason="offline") | later,
        event("retained", delta=3, client="c", topic="a") | later,
        event("authorization_refused", delta=1, client="c", reason="not_authorized")
        | {"labels": {"action": "publish", "by": "acl"}}
        | later,
        event("authentication_refused", delta=1, client="x", reason="not_authorized") | later,
        event("limited", delta=1, client="c", reason="quota_exceeded")
        | {"labels": {"by": "r", "resource": "publish", "verdict": "reject"}}
        | later,
        event("limited", delta=1, reason="delay")
        | {"labels": {"by": "r", "resource": "connection", "verdict": "delay"}}
        | later,
        event("retain_cleared", delta=1, topic="a") | later,
    ]


def test_samples_and_traffic_have_the_moment_they_are_of(scene: Scene) -> None:
    """Which is the snapshot's, and not that of the writing."""
    scene.sink.sampled(Snapshot(12.5, "n", (CounterSample("a.b", "bytes", {}, 3),)))
    scene.sink.traffic_sampled(TrafficSnapshot(13.5, "n", (Traffic("c", "t", 1, 2),)))

    assert [(record["t"], record["kind"]) for record in scene.told()] == [
        (12_500_000, "counter"),
        (13_500_000, "traffic"),
    ]


@pytest.mark.parametrize("number", [50, 6000])
def test_traffic_of_very_many_is_bounded(tmp_path: Path, number: int) -> None:
    """The largest pairs are told, the others in one record; many are sorted beside the reactor."""
    scene = Scene(tmp_path, max_pairs=3)
    pairs = tuple(Traffic(f"c{n}", "t", 1, n) for n in range(number))
    scene.sink.traffic_sampled(TrafficSnapshot(1.0, "n", pairs))

    told = scene.told()
    assert [record["client"] for record in told] == [*(f"c{number - n}" for n in (1, 2, 3)), OTHERS]
    assert sum(record["delta"] for record in told) == number
    assert sum(record["bytes"] for record in told) == sum(range(number))


def test_nobody_waits_for_the_sorting_of_very_many(tmp_path: Path) -> None:
    """What comes meanwhile is told as a sum, and a second thread does not begin."""
    scene = Scene(tmp_path, max_pairs=1)
    calls: list[Callable[[], object]] = []
    in_thread = scene.context.in_thread
    scene.context.in_thread = calls.append  # type: ignore[method-assign, assignment]
    many = tuple(Traffic(f"c{n}", "t", 1, n) for n in range(6000))
    scene.sink.traffic_sampled(TrafficSnapshot(1.0, "n", many))
    scene.sink.traffic_sampled(TrafficSnapshot(2.0, "n", many))
    [sort] = calls
    sort()
    scene.sink.traffic_sampled(TrafficSnapshot(3.0, "n", many[:1]))
    scene.context.in_thread = in_thread  # type: ignore[method-assign]

    assert [(record["t"], record["client"], record["delta"]) for record in scene.told()] == [
        (2_000_000, OTHERS, 6000),
        (1_000_000, "c5999", 1),
        (1_000_000, OTHERS, 5999),
        (3_000_000, "c0", 1),
    ]


@pytest.mark.parametrize("how", ["raises", "refused", "never comes"])
def test_what_can_not_be_sorted_is_told_as_a_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Said once in the log; and the next interval is told singly again, as soon as that can be."""
    scene = Scene(tmp_path, max_pairs=1)
    in_thread = scene.context.in_thread
    many = tuple(Traffic(f"c{n}", "t", 1, n) for n in range(6000))
    late: list[Callable[[], object]] = []

    def refuse(call: Callable[[], object]) -> None:
        raise RuntimeError("no threads")

    def raise_instead(traffic: TrafficSnapshot, limit: int) -> TrafficSnapshot:
        if limit:
            raise MemoryError("by chance")
        return largest(traffic, limit)

    if how == "raises":
        monkeypatch.setattr(traffic_module, "largest", raise_instead)
    else:
        scene.context.in_thread = (  # type: ignore[method-assign]
            refuse if how == "refused" else late.append  # type: ignore[assignment]
        )
    for at in (1.0, 2.0):
        scene.sink.traffic_sampled(TrafficSnapshot(at, "n", many))
        scene.clock.advance(FIND_S + scene.sink.settings.roll_s)
    scene.context.in_thread = in_thread  # type: ignore[method-assign]
    monkeypatch.undo()
    for find in late:
        find()
    scene.sink.traffic_sampled(TrafficSnapshot(3.0, "n", many))

    texts = [text for text in scene.context.log.texts("error") if "can't be found" in text]
    why = {"raises": "MemoryError: by chance", "refused": "RuntimeError: no threads"}
    assert len(texts) == 1 and texts[0].endswith(why.get(how, "no thread was free within 30 s"))
    assert [(record["t"], record["client"], record["delta"]) for record in scene.told()] == [
        (1_000_000, OTHERS, 6000),
        (2_000_000, OTHERS, 6000),
        (3_000_000, "c5999", 1),
        (3_000_000, OTHERS, 5999),
    ]


@pytest.mark.parametrize("threads", ["busy", "none"])
def test_the_end_waits_for_no_thread_of_the_broker(tmp_path: Path, threads: str) -> None:
    """All of them may be busy with something else, or gone: everything is published, in a time that is bounded."""
    scene = Scene(tmp_path, max_pairs=1)

    def refuse(call: Callable[[], object]) -> None:
        raise RuntimeError("no threads")

    scene.context.in_thread = (  # type: ignore[method-assign]
        refuse if threads == "none" else lambda call: Deferred()  # type: ignore[assignment]
    )
    many = tuple(Traffic(f"c{n}", "t", 1, n) for n in range(6000))
    scene.sink.traffic_sampled(TrafficSnapshot(1.0, "n", many))
    began = scene.clock.monotonic()
    drive: Callable[[Maybe[None]], None] = TurningDriver(scene.clock, lambda: scene.clock.advance(1.0))
    drive(scene.sink.stop())

    assert scene.clock.monotonic() - began <= STOP_S + RETRY_S
    assert sum(record.get("delta", 0) for record in records(tmp_path)) == 6000
    assert records(tmp_path)[-1]["name"] == "stopped"
    assert left_open(tmp_path) == []
    Lock(tmp_path, "n").release()


def test_what_a_thread_that_is_gone_has_left_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the timer's next turn, and told."""
    scene = Scene(tmp_path, start=False)

    def broken(writer: DiskWriter) -> float:
        raise MemoryError("by chance")

    monkeypatch.setattr(DiskWriter, "turn", broken)
    scene.start()
    assert scene.sink._thread is not None
    scene.sink._thread._thread.join(30.0)
    scene.clock.advance(scene.sink.settings.roll_s)

    assert scene.sink.health().text == "the writing thread has ended: MemoryError: by chance"
    assert scene.sink._figures.dropped["write_failed"].value == 1, "the record of the start"
    assert "1 records were dropped" in scene.context.log.texts("warn")
    scene.stop()


def test_whatever_becomes_of_the_last_words_the_rest_is_published(tmp_path: Path) -> None:
    """An error on the way is the broker's to tell; records that waited are there, and the folder is free."""
    scene = Scene(tmp_path)
    scene.sink.session_expired("a")

    def broken(t: int) -> None:
        raise ZeroDivisionError("by chance")

    scene.sink._counts.flush = broken  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        scene.stop()

    assert [record["name"] for record in records(tmp_path)] == ["started", "session_expired"]
    Lock(tmp_path, "n").release()


def test_traffic_that_found_the_queue_full_is_told_with_the_others(tmp_path: Path) -> None:
    """Of which client it was is lost, and no message."""
    scene = Scene(tmp_path)
    offer = scene.sink._traffic._offer
    scene.sink._traffic._offer = lambda *_: False
    scene.sink.traffic_sampled(TrafficSnapshot(1.0, "n", (Traffic("c", "t", 2, 30),), 1, 5))
    scene.sink._traffic._offer = offer
    scene.sink.traffic_sampled(TrafficSnapshot(2.0, "n", (Traffic("c", "t", 4, 50),)))
    scene.sink.traffic_sampled(TrafficSnapshot(3.0, "n", ()))

    assert [(record["client"], record["delta"], record["bytes"]) for record in scene.told()] == [
        ("c", 4, 50),
        (OTHERS, 3, 35),
    ]


def test_what_a_client_chooses_counts_and_is_cut(tmp_path: Path) -> None:
    """User names are shown to 256 characters; labels, and letters that take more than a byte, count as memory."""
    scene = Scene(tmp_path)
    before = scene.sink._spool._offered_bytes
    scene.sink.connected(evolve(CLIENT, username="\u00e4" * 60_000), False)
    size_bytes = scene.sink._spool._offered_bytes - before

    [record] = scene.told()
    assert record["labels"]["username"] == "\u00e4" * 255 + "\u2026"
    assert size_bytes >= RECORD_BYTES + 256 * 2


def test_a_client_may_be_called_others(tmp_path: Path) -> None:
    """In each kind of record it is told with one more pair of parentheses."""
    scene = Scene(tmp_path, capture=("#",))
    scene.sink.unsubscribed(evolve(CLIENT, client_id=OTHERS), OTHERS)
    scene.sink.publish_received(evolve(CLIENT, client_id=OTHERS), Message(OTHERS, b""))

    assert {(record["client"], record["topic"]) for record in scene.told()} == {("((others))",) * 2}


def test_beginnings_are_remembered_only_where_ends_are_told(tmp_path: Path) -> None:
    """Else nobody would forget them."""
    scene = Scene(tmp_path, events=("connected",))
    scene.sink.connected(CLIENT, False)

    assert scene.sink._since == {}
    scene.stop()


def test_captured_messages_are_archived(tmp_path: Path) -> None:
    """With their payload, unless it is larger than the settings allow."""
    scene = Scene(tmp_path, capture=("a/#",), capture_max_payload_bytes=3)
    for payload in (b"\x00\xff!", b"long", b""):
        scene.sink.publish_received(CLIENT, Message("a/b", payload, 1, True, received_at=2.0))

    message = {"t": 2_000_000, "kind": "message", "labels": {"qos": "1", "retain": "true"}}
    message |= {"client": "c", "topic": "a/b"}
    assert scene.told() == [
        message | {"bytes": 3, "payload": "AP8h"},
        message | {"bytes": 4},
        message | {"bytes": 0, "payload": ""},
    ]


# What costs


def test_by_itself_nothing_is_heard_of_that_costs_for_each_message(tmp_path: Path) -> None:
    """Hooks that make the broker look at every message are left out unless somebody asks for them."""
    context = BareContext("metrics", MetricsSettings(landing=tmp_path))
    MetricsSink().configure(context)

    costly = {"dropped", "retained", "retain_cleared", "publish_received"}
    assert context.left_out == costly


def test_each_event_that_is_not_told_is_a_hook_that_is_left_out(tmp_path: Path) -> None:
    """Of all the events that lines may have, and of no hook that is none of the sink's."""
    by_event = {}
    for name in EVENTS:
        if name not in ("started", "stopped"):
            others = tuple(other for other in CHOICES if other != name)
            context = BareContext("metrics", MetricsSettings(landing=tmp_path, events=others))
            MetricsSink().configure(context)
            by_event[name] = context.left_out - {"publish_received"}

    assert set(by_event) == set(CHOICES)
    assert {name for hooks in by_event.values() for name in hooks if not hasattr(MetricsSink, name)} == set()
    # How long connections lasted is known by their beginning.
    assert [name for name, hooks in by_event.items() if not hooks] == ["connected"]


def test_no_events_are_no_hooks(tmp_path: Path) -> None:
    """Samples and traffic are told all the same."""
    scene = Scene(tmp_path, events=())

    assert {"connected", "disconnected", "connection_lost", "subscribed", "limited"} <= scene.context.left_out
    assert not {"sampled", "traffic_sampled"} & scene.context.left_out
    scene.stop()


def test_how_long_connections_lasted_is_known_where_their_beginning_is_not_told(tmp_path: Path) -> None:
    """The hook is wanted, and says nothing."""
    scene = Scene(tmp_path, events=("disconnected",))
    scene.sink.connected(CLIENT, False)
    scene.clock.advance(1)
    scene.sink.connection_lost(CLIENT)

    assert "connected" not in scene.context.left_out
    assert [(record["name"], record["number"]) for record in scene.told()] == [("disconnected", 1.0)]


def test_each_sink_captures_its_own_topics(tmp_path: Path) -> None:
    """What is bound to one plugin object is not bound to another."""
    one = Scene(tmp_path, capture=("a/#",), start=False)
    other = Scene(tmp_path, capture=("b", "c/+"), start=False)

    assert topics_of(one.sink.publish_received) == ("a/#",)
    assert topics_of(other.sink.publish_received) == ("b", "c/+")


# Its life


def test_without_a_folder_it_abstains() -> None:
    """Installed is not configured."""
    with pytest.raises(NotConfigured, match="no landing folder"):
        MetricsSink().configure(BareContext("metrics", MetricsSettings()))


def test_what_an_earlier_life_left_is_published(tmp_path: Path) -> None:
    """And told, with what had to be cut."""
    name = SegmentName("n", "00000000000000aa", 4)
    line = b'{"v":1,"t":5,"node":"n","boot":"00000000000000aa","seq":9}\n'
    open_path(tmp_path, name).write_bytes(line + line[:20])
    scene = Scene(tmp_path)

    texts = scene.context.log.texts()
    scene.stop()
    assert any(str(name) in text and "earlier run" in text for text in texts)
    assert any("removed 20 bytes" in text for text in texts)
    assert [record["seq"] for record in records(tmp_path)] == [9, 1, 2]
    assert left_open(tmp_path) == []


def test_a_second_broker_of_that_name_does_not_start(tmp_path: Path) -> None:
    """It says whose folder it is and what to do; when the first has stopped it may."""
    first = Scene(tmp_path)
    second = Scene(tmp_path, start=False)
    with pytest.raises(AssemblyError, match=r"another broker named 'n' writes to .*give this one another name"):
        second.start()
    second.stop()
    first.stop()
    third = Scene(tmp_path)
    third.stop()

    assert [record["name"] for record in records(tmp_path)] == ["started", "stopped"]


def test_the_folder_stays_locked_while_something_may_write_to_it(tmp_path: Path) -> None:
    """A disk that does not respond may do so later: another broker of that name must not be there by then."""
    first = Scene(tmp_path)
    thread, first.sink._thread = first.sink._thread, _Endless()
    first.stop()
    second = Scene(tmp_path, start=False)
    with pytest.raises(AssemblyError, match="another broker named 'n'"):
        second.start()

    assert any("does not respond" in text for text in first.context.log.texts())
    assert thread is not None
    thread.end(5.0)
    assert thread.join()
    assert first.sink._lock is not None
    first.sink._lock.release()


def test_a_disk_that_does_not_answer_is_told_while_it_does_not(tmp_path: Path) -> None:
    """An operator hears of it from the log and from health, and not when the broker stops."""
    monotonic = [0.0]
    hanging, answers = threading.Event(), threading.Event()

    class Frozen(Disk):
        def write(self, fd: int, data: bytes | memoryview) -> int:
            hanging.set()
            assert answers.wait(30)
            return super().write(fd, data)

    scene = Scene(tmp_path, start=False, disk=Frozen(), monotonic=lambda: monotonic[0])
    scene.sink.session_expired("a")
    thread = threading.Thread(target=scene.sink._writer.turn)
    thread.start()
    assert hanging.wait(30)
    healths = []
    for passed_s in (STUCK_S, 1.0, 60.0):
        monotonic[0] += passed_s
        scene.sink._tell_news(_Thread())
        healths.append(scene.sink.health())
    answers.set()
    thread.join(30)
    scene.sink._tell_news(_Thread())

    said = f"{tmp_path}: the disk does not respond"
    assert [health.state.name for health in healths] == ["HEALTHY", "DEGRADED", "DEGRADED"]
    assert said in healths[1].text
    assert scene.context.log.texts() == [f"records can't be written: {said}", "records are written again"]
    assert scene.sink.health().state is HealthState.HEALTHY


def test_a_second_broker_leaves_alone_what_the_first_is_writing(tmp_path: Path) -> None:
    """Even where somebody has removed the lock: it does not start, and keeps no lock of its own."""
    first = Scene(tmp_path, start=False)
    first.sink.session_expired("a")
    first.sink._writer.turn()
    second = Scene(tmp_path, start=False)
    for _ in range(2):
        with pytest.raises(AssemblyError, match=r"another broker named 'n' writes to .*give this one another name"):
            second.start()
    first.sink._writer.publish()
    Lock(tmp_path, "n").release()

    assert [record["name"] for record in records(tmp_path)] == ["session_expired"]


def test_a_lock_that_another_has_is_told_once(tmp_path: Path) -> None:
    """Degraded, and nothing is lost; when the other has gone the folder is this one's again."""
    monotonic = [0.0]
    scene = Scene(tmp_path, start=False, monotonic=lambda: monotonic[0])
    scene.sink._lock = Lock(tmp_path, "n")
    healths = []

    def write() -> None:
        scene.sink.session_expired("a")
        monotonic[0] += LOOK_S
        scene.sink._writer.turn()
        scene.sink._writer.publish()
        for _ in range(2):
            scene.sink._tell_news(_Thread())
        healths.append(scene.sink.health())

    scene.sink._lock.path.unlink()
    write()
    scene.sink._lock.path.unlink()
    other = Lock(tmp_path, "n")
    write()
    write()
    other.release()
    write()

    assert [health.state.name for health in healths] == ["HEALTHY", "DEGRADED", "DEGRADED", "HEALTHY"]
    assert "another broker named 'n' writes to" in healths[1].text and "was removed" in healths[1].text
    assert scene.context.log.texts() == [healths[1].text, f"the lock of {tmp_path} is held again"]
    assert len(records(tmp_path)) == 4


def test_an_idle_broker_looks_after_its_lock(tmp_path: Path) -> None:
    """Within a second, the folder removed with it: nobody of the name gets in while there is nothing to write."""
    monotonic = [0.0]
    landing = tmp_path / "landing"
    landing.mkdir()
    scene = Scene(landing, start=False, monotonic=lambda: monotonic[0])
    scene.sink._lock = Lock(landing, "n")
    shutil.rmtree(landing)
    scene.sink._writer.turn()
    too_early = landing.exists()
    monotonic[0] += LOOK_S
    scene.sink._writer.turn()

    assert not too_early
    with pytest.raises(InUse):
        Lock(landing, "n")
    assert scene.sink.health().state is HealthState.HEALTHY


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, None])
def test_a_broker_that_can_not_write_looks_after_its_lock(tmp_path: Path, number: int | None) -> None:
    """Where the disk fails, is full, or has less room than is to stay free, nobody of the name gets in either."""
    monotonic = [0.0]
    disk = BrokenDisk(lambda call: number if call == "write" else None)
    disk.free = 10
    scene = Scene(
        tmp_path, disk, start=False, monotonic=lambda: monotonic[0], keep_free_bytes=int(number is None) * 99
    )
    scene.sink._lock = Lock(tmp_path, "n")
    scene.sink.session_expired("a")
    scene.sink._lock.path.unlink()
    monotonic[0] += LOOK_S
    scene.sink._writer.turn()

    assert scene.sink.health().state is HealthState.DEGRADED
    with pytest.raises(InUse):
        Lock(tmp_path, "n")


def test_a_lock_that_can_not_be_made_again_is_told(tmp_path: Path) -> None:
    """Why, and where; records are written all the same."""
    monotonic = [0.0]
    scene = Scene(tmp_path, start=False, monotonic=lambda: monotonic[0])
    scene.sink._lock = Lock(tmp_path, "n")
    scene.sink._lock.path.unlink()
    scene.sink._lock.path.mkdir()
    scene.sink.session_expired("a")
    monotonic[0] += LOOK_S
    scene.sink._writer.turn()
    scene.sink._writer.publish()

    assert scene.sink.health().text == f"{tmp_path}/.lock-n was removed and can't be made again: Is a directory"
    assert len(records(tmp_path)) == 1


def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    """At the start, with the setting and the limit: every record would be dropped."""
    with pytest.raises(AssemblyError, match=r"\(broker\.node_name\), 'xxx.*takes 201 bytes .*and may take 200"):
        Scene(tmp_path, node="x" * 201, start=False)
    with pytest.raises(AssemblyError, match="takes 300 bytes"):
        Scene(tmp_path, node="ä" * 50, start=False)
    with pytest.raises(AssemblyError, match=r"is not valid Unicode: set broker\.node_name"):
        Scene(tmp_path, node="\udcff", start=False)
    with pytest.raises(AssemblyError, match=r"has no name.*set broker\.node_name"):
        Scene(tmp_path, node="", start=False)
    scene = Scene(tmp_path, node="x" * 200)
    scene.stop()

    assert len(records(tmp_path)) == 2


def test_brokers_share_a_folder(tmp_path: Path) -> None:
    """Each under its own name; segments that the other writes are left alone."""
    first = Scene(tmp_path, node="a")
    second = Scene(tmp_path, node="b")
    second.stop()
    first.stop()

    assert [record["node"] for record in records(tmp_path)] == ["a", "a", "b", "b"]


def test_a_folder_that_can_not_be_made_is_told(tmp_path: Path) -> None:
    """Where, why, and what it must be."""
    (tmp_path / "file").write_text("")
    scene = Scene(tmp_path / "file" / "landing", start=False)

    with pytest.raises(AssemblyError, match=r"plugins\.metrics\.landing: .*/landing can't be written to"):
        scene.start()


def test_a_disk_that_fails_is_told_and_waited_for(tmp_path: Path) -> None:
    """Degraded with the reason, once in the log; nothing that was taken is lost when it works again."""
    disk = BrokenDisk(lambda call: errno.EIO if call == "write" else None)
    scene = Scene(tmp_path, disk, start=False)
    scene.sink._writer.turn()
    scene.sink.session_expired("a")
    scene.sink._writer.turn()
    degraded = scene.sink.health()
    for _ in range(2):
        scene.sink._tell_news(_Thread())
    disk.fails = lambda call: None
    scene.sink._writer.turn()
    healthy = scene.sink.health()
    scene.sink._tell_news(_Thread())
    scene.sink._writer.publish()
    scene.start()
    scene.stop()

    assert degraded.state is HealthState.DEGRADED and "Input/output error" in degraded.text
    assert healthy.state is HealthState.HEALTHY
    assert [text for text in scene.context.log.texts() if "written" in text] == [
        f"records can't be written: {tmp_path}: Input/output error",
        "records are written again",
    ]
    assert [record["name"] for record in records(tmp_path)] == ["session_expired", "started", "stopped"]


class _Thread(WriterThread):
    """One that is well."""

    def __init__(self) -> None:
        self.error = ""

    def count_left(self) -> None:
        """Nothing."""


class _Endless(_Thread):
    """One that waits for its disk."""

    def end(self, limit_s: float) -> None:
        """It goes on."""

    def join(self) -> bool:
        """Not within any time."""
        return False


def test_a_reload_takes_what_it_can(scene: Scene, tmp_path: Path) -> None:
    """Limits and times at once; what is bound to hooks, and the folder, with a restart."""
    settings = MetricsSettings(landing=tmp_path / "other", roll_s=9.0, max_pairs=5, events=(), capture=("x",))

    sentences = scene.sink.reload(settings)

    assert sentences == ["landing needs a restart", "events needs a restart", "capture needs a restart"]
    assert scene.sink.settings is settings
    assert scene.sink.reload(settings) == sentences, "what a restart is needed for does not change by itself"
    assert scene.sink.reload(MetricsSettings(landing=tmp_path, events=CHOICES)) == []
    scene.sink.session_expired("a")
    assert [record["name"] for record in scene.told()] == ["session_expired"]


def test_it_tells_of_itself(scene: Scene) -> None:
    """Below $SYS, and among the metrics."""
    topics = {topic.topic: topic.read for topic in scene.sink.sys_topics()}
    scene.sink.session_expired("a")
    scene.stop()
    read = {topic: read() for topic, read in topics.items()}

    assert read["$SYS/metrics/written"] == "3"
    assert read["$SYS/metrics/segments"] == "1"
    assert read["$SYS/metrics/dropped"] == read["$SYS/metrics/waiting"] == read["$SYS/metrics/failures"] == "0"
    assert int(read["$SYS/metrics/bytes"]) > 100
