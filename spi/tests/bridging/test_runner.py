"""A sink's runner: batches, lanes, answers, pauses, the breaker and poison."""

from __future__ import annotations

from asyncio import CancelledError
from itertools import pairwise
from typing import Any

import pytest
from attrs import evolve

from kinmqtt_spi.bridging.parking import REASON_PROPERTY
from kinmqtt_spi.errors import ServiceUnavailable, SinkRefused
from kinmqtt_spi.services.bridge import Poison, Retry, SendSettings, SinkState
from spi_harness.bridge_bench import Bench, payloads


class Unreadable(list[Any]):
    """A list that raises when it is read."""

    def __iter__(self) -> Any:
        raise KeyError("item")


class Unspeakable(Exception):
    """An error without a text."""

    def __str__(self) -> str:
        raise ValueError("no text")


def started(**options: Any) -> Bench:
    bench = Bench(**options)
    bench.runner.start()
    bench.turn()
    return bench


def test_messages_go_out_in_batches() -> None:
    """A full batch goes at once; the rest goes when it has waited long enough. All are acknowledged."""
    bench = started(batch=3)

    sent = bench.put(*"abcde")
    bench.turn()
    assert [len(batch) for batch in bench.list.batches] == [3]
    bench.turn(0.005)

    assert [len(batch) for batch in bench.list.batches] == [3, 2]
    assert payloads(bench.list.taken) == sent
    assert bench.outbox.stored == {}
    assert bench.sum("bridge.sent") == 5
    assert bench.sum("bridge.batches") == 2
    assert bench.states == [SinkState.OPEN]


def test_a_batch_is_bounded_in_bytes() -> None:
    """A batch has at most ``batch_bytes`` of payloads, and at least one message."""
    bench = started(batch_bytes=2, linger_s=0)

    bench.put(*"abcde")
    bench.turn()

    assert [len(batch) for batch in bench.list.batches] == [2, 2, 1]


def test_a_lane_has_one_batch_at_a_time_and_lanes_are_parallel() -> None:
    """While a lane's batch is under way its later messages wait, and those of other lanes don't."""
    bench = started(parallel=8, linger_s=0)
    bench.list.hangs = True

    bench.put("a")
    bench.turn()
    bench.put("a", "b", "c", "d")
    bench.turn()

    under_way = [payloads(batch) for batch in bench.list.batches]
    assert under_way[0] == [b"1"]
    assert [b"2"] not in under_way
    assert len(under_way) > 1
    bench.list.release()
    bench.turn()
    assert sorted(payloads(bench.list.taken)) == [b"1", b"2", b"3", b"4", b"5"]


def test_a_failed_batch_comes_again_whole_before_later_ones() -> None:
    """B2: it comes after a pause, after the sink was closed and opened, with a higher attempt."""
    bench = started(linger_s=0)
    bench.list.errors.append(ServiceUnavailable("away"))

    bench.put("a", "b")
    bench.turn()
    bench.put("c")
    bench.turn()
    assert bench.states[-1] is SinkState.WAITING
    assert bench.runner.why == "away"
    bench.turn(0.1)

    assert [payloads(batch) for batch in bench.list.batches] == [[b"1", b"2"], [b"1", b"2"], [b"3"]]
    assert [item.attempt for item in bench.list.taken] == [2, 2, 1]
    assert (bench.list.opened, bench.list.closed) == (2, 1)
    assert bench.states == [SinkState.OPEN, SinkState.WAITING, SinkState.OPEN]
    assert bench.sum("bridge.again") == 2


def test_pauses_double_up_to_the_longest() -> None:
    """Each pause is twice the one before, less up to a fifth; after a success they begin again."""
    bench = started(linger_s=0, first_pause_s=1.0, longest_pause_s=4.0)
    bench.list.errors.extend(ServiceUnavailable("away") for _ in range(5))
    bench.put("a")
    times: list[float] = []
    for _ in range(160):
        if len(bench.list.batches) > len(times):
            times.append(bench.clock.monotonic())
        bench.turn(0.1)

    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert len(pauses) == 5
    for pause, most in zip(pauses, (1.0, 2.0, 4.0, 4.0, 4.0), strict=True):
        assert 0.8 * most - 0.11 <= pause <= most + 0.11
    lines = bench.log.texts("warn")
    assert len(lines) == 1
    assert "kafka:readings" in lines[0]
    assert "away" in lines[0]


def test_the_breaker_tries_one_batch_at_a_time() -> None:
    """B4: after ``break_after`` failures in a row one lane is tried, and each time another one; a success ends it."""
    bench = started(parallel=4, linger_s=0, break_after=2, first_pause_s=1, longest_pause_s=1)
    bench.put(*"abcdefgh")
    bench.list.errors.extend(ServiceUnavailable("away") for _ in range(50))
    for _ in range(3):
        bench.turn(1)
    before = len(bench.list.batches)
    bench.turn(1)
    bench.turn(1)

    probes = bench.list.batches[before:]
    assert len(probes) == 2
    assert payloads(probes[0]) != payloads(probes[1])
    bench.list.errors.clear()
    bench.turn(1)
    assert len(bench.list.taken) == 8


def test_a_batch_that_hangs_is_given_up_and_sent_again() -> None:
    """B4: its late answer is ignored."""
    bench = started(linger_s=0, time_limit_s=5)
    bench.list.hangs = True
    bench.put("a")
    bench.turn()
    late = bench.list.held[0][0]
    bench.list.hangs = False
    bench.turn(5)
    assert bench.runner.why == "no answer within 5 s"
    late.complete(None)
    bench.turn(0.1)

    assert bench.list.taken[0].attempt == 2
    assert bench.outbox.stored == {}


def test_a_retry_holds_up_its_lane_only() -> None:
    """What is before it in the batch is taken, and it and what follows come again after the pause that it names."""
    bench = started(linger_s=0, parallel=8)
    bench.list.answer = lambda item: Retry("slow down", 7) if item.key == b"a" and item.attempt == 1 else None

    bench.put("a", "b")
    bench.turn()
    assert bench.states[-1] is SinkState.WAITING
    assert payloads(bench.list.taken) == [b"2"]
    bench.turn(6.9)
    assert len(bench.list.taken) == 1
    bench.turn(0.2)

    assert payloads(bench.list.taken) == [b"2", b"1"]
    assert bench.states == [SinkState.OPEN, SinkState.WAITING, SinkState.OPEN]
    assert bench.list.opened == 1


def test_what_follows_a_retry_comes_again_in_order() -> None:
    """The items after a ``Retry`` are sent again, though the sink has taken them: their order is that of the key."""
    bench = started(linger_s=0)
    bench.list.answer = lambda item: Retry("no") if item.message.payload == b"2" and item.attempt == 1 else None

    bench.put("a", "a", "a")
    bench.turn()
    assert len(bench.outbox.stored) == 2
    bench.turn(0.1)

    assert payloads(bench.list.taken) == [b"1", b"3", b"2", b"3"]


def test_a_refused_sink_is_tried_every_minute_and_at_a_reload() -> None:
    """B7: ``SinkRefused`` of ``open``: the state is REFUSED, and messages stay in the outbox."""
    bench = Bench(linger_s=0)
    bench.list.open_errors.extend(SinkRefused("wrong password") for _ in range(3))
    bench.runner.start()
    bench.put("a")
    bench.turn()
    assert bench.states == [SinkState.REFUSED]
    bench.turn(59)
    assert bench.list.opened == 1
    bench.turn(1)
    assert bench.list.opened == 2
    bench.runner.reload(bench.plan, bench.parking)
    assert bench.list.opened == 3
    bench.turn(60)

    assert bench.states == [SinkState.REFUSED, SinkState.OPEN]
    assert payloads(bench.list.taken) == [b"1"]


def test_poison_is_parked_and_then_acknowledged() -> None:
    """A parked message has the reason; the original is removed only after it is committed, and the lane goes on."""
    bench = started(linger_s=0)
    bench.list.answer = lambda item: Poison("too long\n") if item.message.payload == b"1" else None
    bench.parked.fails = True

    bench.put("a", "a", expires_at=bench.clock.now() + 3600)
    bench.turn()
    assert payloads(bench.list.taken) == [b"2"]
    assert [each.message.payload for each in bench.outbox.stored.values()] == [b"1"]
    assert bench.poisoned == []
    bench.parked.fails = False
    bench.turn(0.2)

    assert bench.outbox.stored == {}
    [parked] = [each.message for each in bench.parked.stored.values()]
    assert parked.payload == b"1"
    assert parked.properties.user_property == ((REASON_PROPERTY, "too long "),)
    assert parked.expires_at is None
    assert [why for _, why in bench.poisoned] == ["too long\n"]
    assert bench.sum("bridge.poisoned") == 1


@pytest.mark.parametrize("still_poison", [True, False])
def test_what_could_not_be_parked_goes_back_to_its_lane_if_a_reload_halts_instead(still_poison: bool) -> None:
    """It stays in the outbox: the plan no longer parks, and it does not drop."""
    bench = started(linger_s=0)
    bench.list.answer = lambda item: Poison("no") if item.message.payload in (b"1", b"2") else None
    bench.parked.fails = True
    bench.put("a", "a", "a")
    bench.turn()
    if not still_poison:
        bench.list.answer = lambda item: None

    bench.runner.reload(evolve(bench.plan, sending=SendSettings(linger_s=0, poison="stop")), bench.parking)
    bench.turn(1)

    if still_poison:
        assert [each.message.payload for each in bench.outbox.stored.values()] == [b"1", b"2"]
        assert bench.states[-1] is SinkState.STOPPED
    else:
        assert payloads(bench.list.taken) == [b"3", b"1", b"2"]
        assert bench.outbox.stored == {}


def test_poison_is_dropped_if_the_settings_say_so() -> None:
    """It is acknowledged and reported."""
    bench = started(linger_s=0, poison="drop")
    bench.list.answer = lambda item: Poison("no")

    bench.put("a")
    bench.turn()

    assert bench.outbox.stored == {}
    assert len(bench.poisoned) == 1


def test_poison_may_halt_its_lane_until_a_reload() -> None:
    """The messages from it on stay in the outbox; other lanes go on."""
    bench = started(linger_s=0, poison="stop", parallel=8)
    bench.list.answer = lambda item: Poison("no") if item.message.payload == b"2" else None

    bench.put("a", "a", "a", "b")
    bench.turn()
    assert {b"1", b"4"} <= set(payloads(bench.list.taken)) <= {b"1", b"3", b"4"}
    assert bench.states == [SinkState.OPEN, SinkState.STOPPED]
    assert [each.message.payload for each in bench.outbox.stored.values()] == [b"2", b"3"]
    bench.list.answer = lambda item: None
    bench.runner.reload(bench.plan, bench.parking)
    bench.turn()

    assert payloads(bench.list.taken)[-2:] == [b"2", b"3"]
    assert bench.states[-1] is SinkState.OPEN


def test_a_halted_lane_has_no_place_in_the_window() -> None:
    """B6: neither what came before its poison was found, nor what comes later."""
    bench = started(linger_s=0, batch=1, poison="stop", parallel=8, window=2)
    bench.list.answer = lambda item: Poison("no") if item.message.payload == b"1" else None

    bench.put(*"aaaaaa", *"bbbbbb")
    for _ in range(20):
        bench.turn()

    assert payloads(bench.list.taken) == [b"%d" % number for number in range(7, 13)]
    assert len(bench.outbox.stored) == 6


def test_a_message_may_use_up_its_attempts() -> None:
    """A batch that raises too often is sent one by one; only the message at fault becomes poison."""
    bench = started(linger_s=0, attempts=2, first_pause_s=0.1, longest_pause_s=0.1)

    def answer(item: Any) -> None:
        if item.message.payload == b"2":
            raise KeyError("field")

    bench.list.answer = answer
    bench.put("a", "a", "a")
    for _ in range(10):
        bench.turn(0.1)

    assert payloads(bench.list.taken) == [b"1", b"3"]
    [(poisoned, why)] = bench.poisoned
    assert poisoned.payload == b"2"
    assert "KeyError" in why
    assert bench.outbox.stored == {}
    assert bench.states[-1] is SinkState.OPEN


def test_an_outage_makes_no_poison() -> None:
    """Failures of the target, and exceeded time limits, do not count as attempts of a message."""
    bench = started(linger_s=0, attempts=1)
    bench.list.errors.extend(ServiceUnavailable("away") for _ in range(10))
    bench.put("a")
    for _ in range(20):
        bench.turn(30)

    assert bench.poisoned == []
    assert len(bench.list.taken) == 1


def test_a_retry_may_use_up_its_attempts() -> None:
    """The item becomes poison with the text of the answer."""
    bench = started(linger_s=0, attempts=3)
    bench.list.answer = lambda item: Retry("busy") if item.message.payload == b"1" else None
    bench.put("a", "a")
    for _ in range(5):
        bench.turn(1)

    assert [why for _, why in bench.poisoned] == ["busy (after 3 attempts)"]
    assert payloads(bench.list.taken)[-1] == b"2"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ([None], "it returned 1 answers for 2 messages"),
        ("ok", "it returned a str"),
        (7, "it returned a int"),
        ([None, True], "its answer for message 2 of 2 is a bool"),
        ([Retry("x", -1), None], "an after_s that is not a finite number"),
        ([Poison(3), None], "has a text that is a int"),  # type: ignore[arg-type]
        (Retry("x"), "it returned a Retry"),
        (Unreadable([None, None]), "its answer can't be read (KeyError)"),
    ],
)
def test_a_wrong_answer_is_a_failure_that_is_named(answer: Any, text: str) -> None:
    """Nothing is acknowledged, the line names the sink, and the batch is sent again."""
    bench = Bench(linger_s=0)
    send = bench.list.send
    answers = [answer]
    bench.list.send = lambda items: answers.pop() if answers else send(items)  # type: ignore[method-assign]
    bench.runner.start()
    bench.put("a", "b")
    bench.turn()
    assert len(bench.outbox.stored) == 2
    [line] = bench.log.texts("error")
    assert "kafka:readings" in line
    assert text in line
    bench.turn(0.1)

    assert len(bench.list.taken) == 2


def test_a_sink_may_ask_for_a_pause_of_any_length() -> None:
    """It waits for an hour at most, also where the number is too large for a float."""
    bench = started(linger_s=0)
    bench.list.answer = lambda item: Retry("later", 10**400) if item.attempt == 1 else None
    bench.put("a")
    bench.turn()
    bench.turn(3600)

    assert payloads(bench.list.taken) == [b"1"]


@pytest.mark.parametrize("error", [CancelledError(), Unspeakable()])
@pytest.mark.parametrize("method", ["open", "send", "close", "key"])
def test_whatever_a_sink_raises_is_a_failure_that_passes(method: str, error: BaseException) -> None:
    """asyncio's cancellation, and an error whose text can't be made: they are logged, and the messages are sent."""
    bench = Bench(linger_s=0)
    errors = [error]

    def failing(proper: Any) -> Any:
        def call(*arguments: Any) -> Any:
            if errors:
                raise errors.pop()
            return proper(*arguments)

        return call

    plan = bench.plan
    if method == "key":
        plan = evolve(plan, key=failing(plan.key))
    else:
        setattr(bench.list, method, failing(getattr(bench.list, method)))
    bench.runner.reload(plan, bench.parking)
    bench.runner.start()
    bench.put("a")
    bench.turn()
    bench.turn(0.1)
    bench.runner.reload(plan, bench.parking)
    bench.turn(0.1)

    assert payloads(bench.list.taken) == [b"1"]
    assert bench.outbox.stored == {}
    assert errors == []
    assert len(bench.log.texts("error")) == 1


def test_an_unknown_error_is_logged_with_its_traceback() -> None:
    """Failures after it within a minute are counted in the next line."""
    bench = started(linger_s=0)
    bench.list.errors.extend(KeyError("field") for _ in range(4))
    bench.put("a")
    for _ in range(4):
        bench.turn(1)

    [line] = bench.log.texts("error")
    assert "Traceback" in line
    assert "KeyError" in line
    assert "more since" not in line


def test_a_defect_is_logged_although_the_target_was_away() -> None:
    """Each kind of failure has its own line a minute; a line says how many of its kind were left out."""
    bench = started(linger_s=0)
    bench.list.errors.extend([ServiceUnavailable("away"), KeyError("field"), ServiceUnavailable("away")])
    bench.put("a")
    for _ in range(3):
        bench.turn(1)
    assert "KeyError" in bench.log.texts("error")[0]
    assert len(bench.log.texts("warn")) == 1

    bench.turn(60)
    bench.list.errors.append(ServiceUnavailable("away"))
    bench.put("b")
    bench.turn(1)

    assert bench.log.texts("warn")[1].endswith(" s (1 more since the last line)")


def test_a_stop_lets_a_batch_end() -> None:
    """What is taken before the deadline is acknowledged; nothing else is sent, and the sink is closed."""
    bench = started(linger_s=0)
    bench.list.hangs = True
    bench.put("a")
    bench.turn()
    bench.put("b")
    bench.turn()
    ended: list[bool] = []

    bench.runner.stop(10, lambda: ended.append(True))
    bench.turn(1)
    assert not ended
    bench.list.release()
    bench.turn()

    assert ended
    assert payloads(bench.list.taken) == [b"1"]
    assert [each.message.payload for each in bench.outbox.stored.values()] == [b"2"]
    assert bench.list.closed == 1
    assert bench.states[-1] is SinkState.STOPPED
    assert bench.clock.pending() == 0


def test_a_stop_ends_at_its_deadline() -> None:
    """A batch that hangs stays unacknowledged, and a sink that hangs in ``close`` is left alone."""
    bench = started(linger_s=0)
    bench.list.hangs = True
    bench.put("a")
    bench.turn()
    ended: list[float] = []

    bench.runner.stop(10, lambda: ended.append(bench.clock.monotonic()))
    bench.turn(8)
    bench.turn(2)

    assert ended == [pytest.approx(8.0, abs=0.1)]
    assert len(bench.outbox.stored) == 1
    assert bench.clock.pending() == 0


def test_a_runner_starts_again_after_a_stop() -> None:
    """What it had from the outbox is sent then, with a higher attempt if the sink may have it."""
    bench = started(linger_s=0)
    bench.list.hangs = True
    bench.put("a")
    bench.turn()
    bench.put("b")
    bench.turn()
    bench.runner.stop(0)
    bench.turn()
    bench.list.hangs = False
    bench.runner.start()
    bench.turn()

    assert [(item.message.payload, item.attempt) for item in bench.list.taken] == [(b"1", 2), (b"2", 1)]


def test_a_reload_changes_the_plan() -> None:
    """A batch under way ends with the old sink; what waits goes to the new one, in its order."""
    bench = started(linger_s=0)
    bench.list.hangs = True
    bench.put("a")
    bench.turn()
    bench.put("a", "b", "a")
    bench.turn()
    other = Bench().list
    plan = evolve(bench.plan, sink=other, sending=evolve(bench.plan.sending, parallel=4))

    bench.runner.reload(plan, bench.parking)
    bench.turn()
    assert other.opened == 0
    bench.list.release()
    bench.turn()

    assert payloads(bench.list.taken) == [b"1"]
    assert bench.list.closed == 1
    assert [item.message.payload for item in other.taken if item.key == b"a"] == [b"2", b"4"]
    assert len(other.taken) == 3
    assert bench.outbox.stored == {}


def test_what_was_handed_out_before_a_restart_counts_as_an_attempt() -> None:
    """The sink is told that its target may have it."""
    first = started(linger_s=0)
    first.list.hangs = True
    first.put("a")
    first.turn()
    second = Bench(linger_s=0, stored=first.outbox.stored)
    second.runner.start()
    second.turn()

    assert [item.attempt for item in second.list.taken] == [2]


def test_an_expired_message_is_not_sent() -> None:
    """It is acknowledged and counted."""
    bench = Bench(linger_s=0)
    bench.list.open_errors.append(ServiceUnavailable("away"))
    bench.runner.start()
    bench.put("a", expires_at=bench.clock.now() + 0.01)
    bench.turn()
    bench.turn(1)

    assert bench.list.batches == []
    assert bench.outbox.stored == {}
    assert bench.sum("bridge.expired") == 1


def test_a_key_function_that_fails_is_replaced_and_named() -> None:
    """The publisher is the key then."""
    bench = Bench(linger_s=0)
    keys: list[Any] = [KeyError("x"), "text"]

    def key(message: Any) -> Any:
        found = keys.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    bench.runner.reload(evolve(bench.plan, key=key), bench.parking)
    bench.runner.start()
    bench.put("a", "b")
    bench.turn()

    assert [item.key for item in bench.list.taken] == [b"a", b"b"]
    assert "its key function raised KeyError" in bench.log.texts("error")[0]


def test_a_plan_that_parks_needs_a_parking() -> None:
    """The mistake is reported at once, not with the first poison."""
    bench = Bench()

    with pytest.raises(ValueError, match="needs an outbox of parked messages"):
        bench.runner.reload(bench.plan, None)
