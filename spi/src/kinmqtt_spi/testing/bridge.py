"""The contract of sinks and sources, each run by the broker's runner."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest
from attrs import frozen

from kinmqtt_spi.bridging.answers import checked
from kinmqtt_spi.errors import PublishRefused
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.services.bridge import Answer, Item, Poison, Sink, SinkState, Source
from kinmqtt_spi.services.plugin import Health
from kinmqtt_spi.testing.behaviours import behaviour
from kinmqtt_spi.testing.bridge_runs import DEADLINE_S, BridgeRuns, SinkRun, SourceRun, numbered
from kinmqtt_spi.testing.contract import Contract
from kinmqtt_spi.testing.driving import Driver
from kinmqtt_spi.values import Maybe, Message

SECRET = b"payload-that-no-line-may-show"
"""A payload that is searched for in the log."""


@frozen(slots=True)
class SinkCase:
    """A sink, and its target."""

    sink: Sink
    received: Callable[[], Sequence[bytes]]
    """Returns the payloads that the target has, in the order in which it got them."""
    poison: Message | None = None
    """A message that the sink answers with ``Poison``; for the suite's ``has_poison``."""


class _Watched(Sink):
    """Passes calls on to a sink, and keeps its answers."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.answers: list[tuple[Any, int]] = []

    def open(self) -> Maybe[None]:
        return self.sink.open()

    def send(self, items: Sequence[Item]) -> Maybe[Sequence[Answer] | None]:
        answer = self.sink.send(items)
        if isinstance(answer, Awaitable):
            return self._keep(answer, len(items))
        self.answers.append((answer, len(items)))
        return answer

    async def _keep(self, answer: Awaitable[Any], count: int) -> Any:
        value = await answer
        self.answers.append((value, count))
        return value

    def close(self) -> Maybe[None]:
        return self.sink.close()


class SinkContract(Contract):
    """Override the fixture ``sink``, which returns a :class:`SinkCase`."""

    can_fail = False
    """Whether the suite may make the target unreachable: override :meth:`failing`."""
    can_refuse = False
    """Whether the suite may make the target refuse the broker: override :meth:`refusing`."""
    can_hang = False
    """Whether the suite may make the target hang: override :meth:`hanging`."""
    has_poison = False
    """Whether there are messages that the sink will never take: give the case one of them, ``poison``."""

    @pytest.fixture
    def sink(self, clock: TurnableClock) -> SinkCase:
        """The sink under test, and its target."""
        raise NotImplementedError(f"{type(self).__name__} does not override the fixture sink")

    @pytest.fixture
    def runs(self, clock: TurnableClock) -> Iterator[BridgeRuns]:
        """What the sink is run with."""
        runs = BridgeRuns(clock, self.reactor)
        yield runs
        runs.close()

    def failing(self, case: SinkCase) -> Callable[[], object]:
        """Make the target unreachable from now on; return a call that repairs it."""
        raise NotImplementedError(f"{type(self).__name__} sets can_fail, and does not override failing")

    def refusing(self, case: SinkCase) -> Callable[[], object]:
        """Make the target refuse the broker from now on; return a call that repairs it."""
        raise NotImplementedError(f"{type(self).__name__} sets can_refuse, and does not override refusing")

    def hanging(self, case: SinkCase) -> Callable[[], object]:
        """Make the target answer nothing from now on; return a call that repairs it."""
        raise NotImplementedError(f"{type(self).__name__} sets can_hang, and does not override hanging")

    # Sending

    @behaviour("SINK-01")
    def test_sink_01_the_target_gets_every_message(self, sink: SinkCase, runs: BridgeRuns) -> None:
        """Every message reaches the target once, as long as nothing fails."""
        run = SinkRun(runs, sink.sink, batch=7)
        run.put(numbered(range(50)))
        run.delivered()

        assert sorted(map(int, sink.received())) == list(range(50))

    @behaviour("SINK-02")
    def test_sink_02_the_order_of_a_key_holds(self, sink: SinkCase, runs: BridgeRuns) -> None:
        """The messages of a key arrive in their order, within a batch and from one to the next."""
        run = SinkRun(runs, sink.sink, batch=4, parallel=4)
        for start in range(0, 40, 10):
            for client in ("a", "b", "c"):
                first = 1000 * "abc".index(client) + start
                run.put(numbered(range(first, first + 10), client=client))
        run.delivered()

        got = [int(payload) for payload in sink.received()]
        for base in (0, 1000, 2000):
            assert [each for each in got if base <= each < base + 1000] == list(range(base, base + 40))

    @behaviour("SINK-03")
    def test_sink_03_answers_are_as_the_interface_says(self, sink: SinkCase, runs: BridgeRuns) -> None:
        """``send`` answers ``None``, or for each item ``None``, ``Retry`` or ``Poison``."""
        watched = _Watched(sink.sink)
        run = SinkRun(runs, watched, batch=3)
        run.put(numbered(range(10)))
        runs.wait(lambda: len(watched.answers) >= 4, "the sink has answered four batches")

        for answer, count in watched.answers:
            checked(answer, count)

    @behaviour("SINK-04")
    def test_sink_04_what_is_acknowledged_has_arrived(self, sink: SinkCase, runs: BridgeRuns) -> None:
        """When a message is acknowledged, the target has it: the sink does not answer before."""
        run = SinkRun(runs, sink.sink, batch=1)
        run.put(numbered(range(10)))
        for _ in range(500):
            runs.turn(0.01)
            assert len(sink.received()) >= 10 - run.left()
            if not run.left():
                break

        assert not run.left()

    @behaviour("SINK-05")
    def test_sink_05_any_payload_arrives(self, sink: SinkCase, runs: BridgeRuns) -> None:
        """An empty payload arrives, every byte, a long one, and any topic and user name."""
        payloads = [b"", bytes(range(256)), b"x" * 100_000]
        run = SinkRun(runs, sink.sink)
        for payload in payloads:
            run.put(numbered([1], topic="Größe/温度/\U0001f321", client="Zoë", payload=payload))
        run.delivered()

        assert list(sink.received()) == payloads

    # Its life

    @behaviour("SINK-06")
    def test_sink_06_it_can_be_opened_again(self, sink: SinkCase, runs: BridgeRuns) -> None:
        """After ``close`` and ``open`` it sends as before."""
        run = SinkRun(runs, sink.sink)
        for number in range(3):
            run.put(numbered([number]))
            run.delivered()
            run.runner.reload(run.plan, run.parking())
            runs.wait(lambda: run.runner.state is SinkState.OPEN, "the sink is open again")

        assert list(sink.received()) == [b"0", b"1", b"2"]

    @behaviour("SINK-07")
    def test_sink_07_it_stops_in_time(self, sink: SinkCase, runs: BridgeRuns) -> None:
        """``close`` ends within the deadline of a stop, and nothing is sent afterwards."""
        run = SinkRun(runs, sink.sink)
        run.put(numbered([1]))
        run.delivered()
        before = runs.clock.monotonic()
        run.stop()
        took_s = runs.clock.monotonic() - before
        run.put(numbered([2]))
        runs.turn(60)

        assert took_s < DEADLINE_S * 0.5
        assert list(sink.received()) == [b"1"]
        assert not any("failed in close" in line for line in runs.log.texts())

    @behaviour("SINK-08")
    def test_sink_08_it_may_be_closed_at_any_time(self, sink: SinkCase, drive: Driver) -> None:
        """``close`` does no harm if the sink was never opened, or is closed already."""
        drive(sink.sink.close())
        drive(sink.sink.open())
        drive(sink.sink.close())
        drive(sink.sink.close())

    @behaviour("SINK-09")
    def test_sink_09_it_says_how_its_target_is(self, sink: SinkCase, drive: Driver) -> None:
        """``check`` returns ``None`` or a ``Health``, open or not."""
        answers: list[Any] = [drive(sink.sink.check())]
        drive(sink.sink.open())
        answers.append(drive(sink.sink.check()))
        drive(sink.sink.close())

        for answer in answers:
            assert answer is None or isinstance(answer, Health)

    # Failures

    @behaviour("SINK-10", needs="can_fail")
    def test_sink_10_an_outage_loses_nothing(self, sink: SinkCase, runs: BridgeRuns) -> None:
        """What can't be sent is not acknowledged, and arrives later, in its order."""
        run = SinkRun(runs, sink.sink, batch=3, time_limit_s=1.0)
        run.put(numbered([0]))
        run.delivered()
        repair = self.failing(sink)
        run.put(numbered(range(1, 8)))
        runs.wait(lambda: run.runner.state is SinkState.WAITING, "the sink waits for its target")
        left = run.left()
        repair()
        assert left >= 8 - len(set(sink.received()))
        run.delivered()

        assert list(dict.fromkeys(sink.received())) == [b"%d" % number for number in range(8)]

    @behaviour("SINK-11", needs="can_fail")
    def test_sink_11_an_outage_is_no_surprise(self, sink: SinkCase, runs: BridgeRuns) -> None:
        """An unreachable target is ``ServiceUnavailable`` or ``Retry``: no traceback, no SinkRefused, no poison."""
        repair = self.failing(sink)
        run = SinkRun(runs, sink.sink, time_limit_s=60.0)
        run.put(numbered(range(3)))
        runs.wait(lambda: run.runner.state is not SinkState.OPEN and run.states, "the sink's state changes")
        runs.turn(1)
        repair()

        assert run.runner.state is SinkState.WAITING
        assert not any("Traceback" in line for line in runs.log.texts())
        assert run.parked.stored == {}

    @behaviour("SINK-12", needs="can_refuse")
    def test_sink_12_a_refusal_is_said(self, sink: SinkCase, runs: BridgeRuns) -> None:
        """A target that refuses the broker is ``SinkRefused``; what waits is sent when it no longer does."""
        repair = self.refusing(sink)
        run = SinkRun(runs, sink.sink)
        run.put(numbered(range(3)))
        runs.wait(lambda: run.runner.state is SinkState.REFUSED, "the sink is refused")
        assert run.left() == 3
        repair()
        run.runner.reload(run.plan, run.parking())
        run.delivered()

        assert list(sink.received()) == [b"0", b"1", b"2"]

    @behaviour("SINK-13", needs="has_poison")
    def test_sink_13_poison_holds_up_nobody(self, sink: SinkCase, runs: BridgeRuns) -> None:
        """A message that it will never take is ``Poison``; those around it arrive."""
        assert sink.poison is not None, "set the case's poison"
        run = SinkRun(runs, sink.sink)
        run.put([*numbered([1]), sink.poison, *numbered([2])])
        run.delivered()

        assert list(sink.received()) == [b"1", b"2"]
        assert [entry.message.payload for entry in run.parked.stored.values()] == [sink.poison.payload]

    @behaviour("SINK-14", needs="can_hang")
    def test_sink_14_a_call_can_be_cancelled(self, sink: SinkCase, runs: BridgeRuns) -> None:
        """A call that exceeds its time limit is cancelled; after a new ``open`` everything arrives, in its order."""
        run = SinkRun(runs, sink.sink, time_limit_s=1.0)
        run.put(numbered([0]))
        run.delivered()
        repair = self.hanging(sink)
        run.put(numbered([1, 2]))
        runs.wait(lambda: run.runner.state is SinkState.WAITING, "the call is given up")
        repair()
        run.delivered()

        assert list(dict.fromkeys(sink.received())) == [b"0", b"1", b"2"]

    @behaviour("SINK-15", needs="can_fail")
    def test_sink_15_payloads_stay_out_of_the_log(self, sink: SinkCase, runs: BridgeRuns) -> None:
        """No error and no answer shows a payload."""
        watched = _Watched(sink.sink)
        run = SinkRun(runs, watched, time_limit_s=1.0)
        repair = self.failing(sink)
        run.put(numbered([1], payload=SECRET))
        runs.turn(5)
        repair()
        run.delivered()

        shown = [*runs.log.texts(), *(repr(answer) for answer, _ in watched.answers), *_texts(watched)]
        assert not any(SECRET.decode() in text for text in shown)


def _texts(watched: _Watched) -> list[str]:
    return [each.text for answer, _ in watched.answers if answer for each in answer if isinstance(each, Poison)]


@frozen(slots=True)
class SourceCase:
    """A source, and its origin."""

    source: Source
    offer: Callable[[Sequence[bytes]], object]
    """Adds messages with these payloads to the origin."""
    acknowledged: Callable[[], Sequence[bytes]]
    """Returns the payloads that the origin will not send again."""


class SourceContract(Contract):
    """Override the fixture ``source``, which returns a :class:`SourceCase`."""

    can_fail = False
    """Whether the suite may make the origin unreachable: override :meth:`failing`."""

    @pytest.fixture
    def source(self, clock: TurnableClock) -> SourceCase:
        """The source under test, and its origin."""
        raise NotImplementedError(f"{type(self).__name__} does not override the fixture source")

    @pytest.fixture
    def runs(self, clock: TurnableClock) -> Iterator[BridgeRuns]:
        """What the source is run with."""
        runs = BridgeRuns(clock, self.reactor)
        yield runs
        runs.close()

    def failing(self, case: SourceCase) -> Callable[[], object]:
        """Make the origin unreachable from now on; return a call that repairs it."""
        raise NotImplementedError(f"{type(self).__name__} sets can_fail, and does not override failing")

    @behaviour("SOURCE-01")
    def test_source_01_every_message_is_published(self, source: SourceCase, runs: BridgeRuns) -> None:
        """What the origin has is published in its order, and acknowledged."""
        sent = _offer(source, 25)
        run = SourceRun(runs, source.source)
        runs.wait(lambda: len(source.acknowledged()) == 25, "everything is acknowledged")

        assert run.payloads() == sent

    @behaviour("SOURCE-02")
    def test_source_02_later_messages_are_published(self, source: SourceCase, runs: BridgeRuns) -> None:
        """What comes while it runs is published, too."""
        run = SourceRun(runs, source.source)
        runs.turn(1)
        sent = _offer(source, 5)
        runs.wait(lambda: len(source.acknowledged()) == 5, "everything is acknowledged")

        assert run.payloads() == sent

    @behaviour("SOURCE-03")
    def test_source_03_only_what_is_committed_is_acknowledged(self, source: SourceCase, runs: BridgeRuns) -> None:
        """Nothing is acknowledged to the origin before its publication has completed."""
        _offer(source, 3)
        run = SourceRun(runs, source.source, holds=True)
        runs.wait(lambda: run.held, "the source publishes")
        runs.turn(5)
        assert list(source.acknowledged()) == []
        run.release()

        runs.wait(lambda: len(source.acknowledged()) == 3, "everything is acknowledged")

    @behaviour("SOURCE-04")
    def test_source_04_what_is_refused_comes_again(self, source: SourceCase, runs: BridgeRuns) -> None:
        """A publication that fails is not acknowledged, and its messages are published later."""
        sent = _offer(source, 3)
        run = SourceRun(runs, source.source, errors=[PublishRefused("full") for _ in range(4)])
        runs.wait(lambda: len(run.errors) < 4, "the publication is refused")
        assert list(source.acknowledged()) == []
        runs.wait(lambda: len(source.acknowledged()) == 3, "everything is acknowledged")

        assert list(dict.fromkeys(run.payloads())) == sent

    @behaviour("SOURCE-05")
    def test_source_05_it_ends_when_it_is_cancelled(self, source: SourceCase, runs: BridgeRuns) -> None:
        """It ends soon, while it waits for messages and while it publishes, and publishes nothing afterwards."""
        run = SourceRun(runs, source.source)
        runs.turn(1)
        _stop_soon(run)
        _offer(source, 3)
        runs.turn(5)
        assert run.published == []
        again = SourceRun(runs, source.source, holds=True)
        runs.wait(lambda: again.held, "the source publishes")

        _stop_soon(again)

    @behaviour("SOURCE-06")
    def test_source_06_another_run_goes_on(self, source: SourceCase, runs: BridgeRuns) -> None:
        """After a stop another run publishes what was not acknowledged, and what has come since."""
        sent = _offer(source, 3)
        first = SourceRun(runs, source.source)
        runs.wait(lambda: len(source.acknowledged()) == 3, "everything is acknowledged")
        first.stop()
        more = _offer(source, 6)[3:]
        second = SourceRun(runs, source.source)
        runs.wait(lambda: len(source.acknowledged()) == 6, "everything is acknowledged")

        assert first.payloads() == sent
        assert second.payloads() == more

    @behaviour("SOURCE-07")
    def test_source_07_its_messages_can_be_published(self, source: SourceCase, runs: BridgeRuns) -> None:
        """It publishes ``Message`` values that a PUBLISH can carry."""
        _offer(source, 3)
        run = SourceRun(runs, source.source)
        runs.wait(lambda: len(run.published) >= 3, "everything is published")

        for message in run.published:
            assert isinstance(message, Message)
            assert message.topic
            assert not any(sign in message.topic for sign in "+#\0")
            assert type(message.payload) is bytes
            assert message.qos in (0, 1, 2)

    @behaviour("SOURCE-08", needs="can_fail")
    def test_source_08_an_outage_loses_nothing(self, source: SourceCase, runs: BridgeRuns) -> None:
        """If the origin can't be reached it raises ``ServiceUnavailable`` and comes back; nothing is lost."""
        repair = self.failing(source)
        run = SourceRun(runs, source.source)
        runs.wait(lambda: run.runner.error is not None, "the source reports the outage")
        repair()
        sent = _offer(source, 3)
        runs.wait(lambda: len(source.acknowledged()) == 3, "everything is acknowledged")

        assert list(dict.fromkeys(run.payloads())) == sent
        assert not any("Traceback" in line for line in runs.log.texts())


def _offer(case: SourceCase, until: int) -> list[bytes]:
    """Add messages to the origin until it had ``until`` of them; return the payloads of all of these."""
    sent = [b"%d" % number for number in range(until)]
    case.offer(sent[len(case.acknowledged()) :])
    return sent


def _stop_soon(run: SourceRun) -> None:
    before = run.runs.clock.monotonic()
    run.stop()
    assert run.runs.clock.monotonic() - before < DEADLINE_S * 0.5
