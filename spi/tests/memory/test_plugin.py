"""What a plugin is handed when there is no broker."""

from __future__ import annotations

import pytest

from kinmqtt_spi.memory.outbox import MemoryOutbox
from kinmqtt_spi.memory.plugin import NO_ID, BareContext, RecordingLog, TurnableClock
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authorization import EVERYBODY, Action, Scope
from kinmqtt_spi.services.outbox import Accepted, OutboxSettings
from kinmqtt_spi.services.plugin import Clock, Log, TopicClaim
from kinmqtt_spi.services.tap import MAX_NESTED
from kinmqtt_spi.values import Client, Message, MessageId, NodeIdentity, deny


def test_a_log_keeps_its_lines() -> None:
    """Lines keep level, format and values, and read as a log file would show them."""
    recording = RecordingLog()
    log: Log = recording

    log.debug("one {what}", what="thing")
    log.info("two")
    log.warn("three")
    log.error("four {error!r}", error="x")

    assert recording.texts() == ["one thing", "two", "three", "four 'x'"]
    assert recording.texts("warn") == ["three"]
    assert recording.lines[0].values == {"what": "thing"}


def test_timers_are_called_in_order_at_their_own_time() -> None:
    """Turning the clock makes the calls that are due, those they arm within the span included."""
    turnable = TurnableClock(now=100.0)
    clock: Clock = turnable
    calls: list[tuple[str, float, float]] = []

    def note(name: str) -> None:
        calls.append((name, clock.now(), clock.monotonic()))

    def first() -> None:
        note("first")
        clock.later(0.5, lambda: note("between"))

    clock.later(2.0, lambda: note("second"))
    clock.later(1.0, first)
    clock.later(2.0, lambda: note("third"))
    clock.later(9.0, lambda: note("never"))
    turnable.advance(3.0)

    assert calls == [
        ("first", 101.0, 1.0),
        ("between", 101.5, 1.5),
        ("second", 102.0, 2.0),
        ("third", 102.0, 2.0),
    ]
    assert (clock.now(), clock.monotonic(), turnable.pending()) == (103.0, 3.0, 1)


def test_a_call_of_no_delay_waits_for_the_next_turn() -> None:
    """Later means later, also after zero seconds."""
    clock = TurnableClock()
    calls: list[int] = []

    clock.later(0.0, lambda: calls.append(1))
    before = list(calls)
    clock.advance()

    assert (before, calls) == ([], [1])


def test_a_cancelled_timer_is_not_called() -> None:
    """Cancelling forgets the call, and is harmless afterwards."""
    clock = TurnableClock()
    calls: list[int] = []
    timer = clock.later(1.0, lambda: calls.append(1))
    made = clock.later(1.0, lambda: calls.append(2))

    timer.cancel()
    clock.advance(1.0)
    made.cancel()

    assert calls == [2]


def test_the_wall_clock_may_step_back_alone() -> None:
    """A correction of the time moves neither timers nor the monotonic clock."""
    clock = TurnableClock(now=100.0)

    clock.step(-50.0)
    clock.advance(1.0)

    assert (clock.now(), clock.monotonic()) == (51.0, 1.0)


def test_timers_that_arm_each_other_for_ever_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy loop fails a test instead of hanging it."""
    monkeypatch.setattr("kinmqtt_spi.memory.plugin._RUNAWAY", 100)
    clock = TurnableClock()

    def again() -> None:
        clock.later(0.0, again)

    again()

    with pytest.raises(RuntimeError, match="without delay"):
        clock.advance()


def test_what_is_published_gets_what_is_absent() -> None:
    """A published message has an id and a time of its own, unless it brought them along."""
    context = BareContext(node=NodeIdentity("n", 7), clock=TurnableClock(now=5.0))
    whole = Message("t", id=MessageId(1, 2), received_at=3.0)

    context.publish(Message("t"))
    context.publish(whole)

    assert context.published == [Message("t", id=MessageId(7, 1), received_at=5.0), whole]


def test_clients_are_known_until_they_are_disconnected() -> None:
    """A context knows the clients it was given; each can be disconnected once."""
    context = BareContext()
    client = context.clients["c"] = Client("c")

    known = context.client("c")
    answers = [context.disconnect("c", ReasonCode.BANNED), context.disconnect("c")]

    assert (known, context.client("c"), answers) == (client, None, [True, False])
    assert context.disconnected == [("c", ReasonCode.BANNED)]


def test_changed_rules_are_recorded() -> None:
    """A test sees whose cached answers a plugin called stale."""
    context = BareContext()

    context.authorization_changed(Scope(username="u"))
    context.authorization_changed(EVERYBODY)

    assert context.authorization_changes == [Scope(username="u"), EVERYBODY]


def test_metrics_carry_the_plugins_name() -> None:
    """What a plugin counts in a test looks as it would in a broker."""
    context = BareContext("mine", settings={"a": 1})

    context.metrics.counter("calls", "calls").value += 1

    assert context.registry.snapshot(0.0, "n").samples[0].labels == {"plugin": "mine"}
    assert context.settings == {"a": 1}


def test_work_for_a_thread_is_done_at_once() -> None:
    """Results and errors of blocking work arrive where they are awaited, and as often as they are."""
    context = BareContext()
    right, wrong = context.in_thread(lambda: 42), context.in_thread(lambda: 1 // 0)
    answers: list[object] = []

    async def plugin() -> None:
        answers.append((await right, await right))
        with pytest.raises(ZeroDivisionError):
            await wrong

    with pytest.raises(StopIteration):
        plugin().send(None)

    assert answers == [(42, 42)]


def test_claimed_topics_are_recorded() -> None:
    """A test sees what a plugin has claimed, and a claim that no broker takes is refused here, too."""
    context = BareContext()

    context.claim_topics("$CONTROL/example/#", Action.PUBLISH, Action.SUBSCRIBE)

    assert context.claims == [TopicClaim("$CONTROL/example/#", {Action.PUBLISH, Action.SUBSCRIBE})]
    with pytest.raises(ValueError, match="can't be claimed"):
        context.claim_topics("example/#")


def test_what_is_published_for_a_client_is_authorized() -> None:
    """What the authorizers deny is not published, and the value that stood for it is forgotten all the same."""
    context = BareContext()
    context.authorizers.append(lambda request: deny() if request.topic == "secret" else None)
    for key in ("a", "b"):
        context.persist(key, b"x")

    context.publish(Message("secret"), in_place_of="a", on_behalf_of=Client("c"))
    context.publish(Message("open"), in_place_of="b", on_behalf_of=Client("c"))

    assert [message.topic for message in context.published] == ["open"]
    assert [message.topic for message in context.denied] == ["secret"]
    assert context.values == {}


def test_what_a_tap_publishes_has_an_id_of_its_own() -> None:
    """As with a broker, also if it is made of the message that the tap sees."""
    context = BareContext()
    seen: list[Message] = []
    context.tap(["a/+"], seen.append)
    context.tap(["a/+"], lambda message: context.publish(message.replace(topic="alarms")))
    context.route(Message("a/b"))

    assert context.published[0].id not in {seen[0].id, NO_ID}


def test_taps_see_what_is_routed_and_published_at_most_eight_deep() -> None:
    """A test routes messages; a closed tap sees none, and nothing of $SYS is shown."""
    context = BareContext()
    seen: list[str] = []

    def see(message: Message) -> None:
        seen.append(message.topic)
        context.publish(Message("loop"))

    tap = context.tap(["a/+", "loop", "#"], see)
    context.route(Message("$SYS/a"))
    context.route(Message("a/b"))
    tap.close()
    tap.close()
    context.route(Message("a/b"))

    assert seen == ["a/b", *["loop"] * MAX_NESTED]
    assert [message.topic for message in context.published] == ["loop"] * MAX_NESTED
    assert [message.topic for message in context.too_deep] == ["loop"]
    for filters in ((), ("a/#/b",), ("$share/g/a",)):
        with pytest.raises(ValueError, match="filter"):
            context.tap(filters, see)


def test_what_takes_longer_is_refused_within_a_tap() -> None:
    """As a broker refuses it."""
    context = BareContext()
    context.tap(["now"], lambda message: context.publish(message, in_place_of="key"))
    context.tap(["later"], lambda message: context.publish_acknowledged([message]))

    for topic in ("now", "later"):
        with pytest.raises(RuntimeError, match="at once"):
            context.route(Message(topic))


def test_messages_are_put_into_the_sinks_that_a_test_adds() -> None:
    """The error names them."""
    context = BareContext()
    context.sinks["kafka:readings"] = MemoryOutbox("readings", OutboxSettings(), context.clock)

    assert context.put("kafka:readings", Message("t", qos=1)) is Accepted.ACCEPTED
    assert context.sinks["kafka:readings"].figures().queued == 1
    assert context.sink_names() == ["kafka:readings"]
    with pytest.raises(ValueError, match="there are: kafka:readings"):
        context.put("kafka:reading", Message("t", qos=1))
