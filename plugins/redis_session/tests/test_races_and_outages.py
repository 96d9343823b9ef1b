"""What the contract suites can't see: races, lost answers, indexes that have too much, and bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lives import Life, begun
from redis.exceptions import MaxConnectionsError
from redis_processes import RedisServer, redis_server

from kinmqtt_redis_session import queues, sessions
from kinmqtt_redis_session.keys import encoded, shard_of
from kinmqtt_redis_session.phases import phases, targets_of, without_refused
from kinmqtt_spi.errors import Fenced, ServiceUnavailable
from kinmqtt_spi.services.queue import Append, InboundOpen, Purge, Remove, Send
from kinmqtt_spi.services.retain import RetainVersion, RetainWrite
from kinmqtt_spi.services.session import Claimant, DiscardSession, OpenSession, ReleaseSession
from kinmqtt_spi.testing.build import HERE, NOW, THERE, entry, message, session
from kinmqtt_spi.values import Message, NodeIdentity, Publisher, Will


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server with nothing in it."""
    with redis_server(tmp_path / "redis") as server:
        yield server


def at(server: RedisServer) -> dict[str, Any]:
    """The settings that lead to a server."""
    return {"host": "127.0.0.1", "port": server.port}


async def kept(life: Life, *writes: Any) -> None:
    """Have a turn's queue writes kept."""
    life.queues.apply(writes)
    answer = life.queues.commit()
    assert answer is not None
    await answer


async def opened(life: Life, name: str, **more: Any) -> int:
    """Claim and open a session; its epoch."""
    epoch = (await life.sessions.claim(name, life.context.node)).epoch
    life.sessions.apply([OpenSession(epoch, session(name, **more))])
    answer = life.sessions.commit()
    assert answer is not None
    await answer
    return epoch


def test_six_brokers_race_for_one_client(server: RedisServer) -> None:
    """No write under an older epoch is kept behind a newer claim, and none that was kept is missing."""

    async def race() -> tuple[list[int], list[tuple[int, bytes]], list[bytes]]:
        lives = [
            await begun(NodeIdentity(f"n{number}", number), **at(server), timeout_s=20.0) for number in range(1, 7)
        ]
        epochs: list[int] = []
        written: list[bytes] = []

        async def contend(life: Life) -> None:
            for _ in range(30):
                epoch = (await life.sessions.claim("x", life.context.node)).epoch
                epochs.append(epoch)
                state = await life.queues.load("x")
                sequence = state.last_sequence + 1
                its = entry(sequence, payload=b"%d" % epoch)
                try:
                    await kept(life, Append("x", epoch, its))
                except Fenced:
                    continue
                written.append(b"%d" % epoch)

        await asyncio.gather(*(contend(life) for life in lives))
        entries = await lives[0].queues.read("x", 0, 1000)
        for life in lives:
            await life.plugin.stop()
        return epochs, [(each.sequence, each.message.payload) for each in entries], written

    epochs, entries, written = asyncio.run(race())

    assert len(set(epochs)) == len(epochs) == 180
    assert sorted(payload for _, payload in entries) == sorted(written)
    assert [int(payload) for _, payload in entries] == sorted(int(payload) for _, payload in entries)
    assert written


def test_a_claim_whose_answer_was_lost_is_undone(server: RedisServer) -> None:
    """Its epoch is known to nobody; who owned the client before goes on under the old one."""

    async def run() -> None:
        life = await begun(**at(server))
        epoch = await opened(life, "c")
        server.pause()
        with pytest.raises(ServiceUnavailable):
            await life.sessions.claim("c", THERE)
        server.go_on()
        await life.parts.link.back()

        await kept(life, Append("c", epoch, entry(1)))

        assert (await life.sessions.claim("c", HERE)).previous_epoch == epoch
        await life.plugin.stop()

    asyncio.run(run())


def test_a_claim_that_is_undone_leaves_the_user(server: RedisServer) -> None:
    """For whom a client id was claimed before holds on: another user is refused as before."""

    async def run() -> None:
        life = await begun(**at(server))
        held = await life.sessions.claim_for("c", life.context.node, Claimant("ann"))
        assert held is not None
        server.pause()
        # Answered without Redis, which carries it out when it goes on.
        assert (await life.sessions.claim("c", life.context.node)).epoch == held.epoch
        server.go_on()
        await life.parts.link.back()

        assert await life.sessions.claim_for("c", THERE, Claimant("bob")) is None
        again = await life.sessions.claim_for("c", THERE, Claimant("ann"))
        assert again is not None and again.previous_epoch == held.epoch
        await life.plugin.stop()

    asyncio.run(run())


def test_a_released_client_id_is_free_before_redis_knows_it(server: RedisServer) -> None:
    """The release is told to nobody's waiting: who claims behind it need not wait for it either."""

    async def run() -> None:
        life = await begun(**at(server))
        node = life.context.node
        held = await life.sessions.claim_for("c", node, Claimant("ann"))
        assert held is not None
        life.sessions.spawn = lambda answer: answer.close()  # It never gets to Redis.

        assert await life.sessions.claim_for("c", node, Claimant("bob")) is None
        life.sessions.release("c", held.epoch)

        assert await life.sessions.claim_for("c", node, Claimant("bob")) is not None
        await life.plugin.stop()

    asyncio.run(run())


def test_what_an_older_version_has_stored_has_an_unverified_user(server: RedisServer) -> None:
    """Where nothing says that the name was verified, or an older broker has put another in its place since."""

    async def run() -> None:
        life = await begun(**at(server))
        await opened(life, "old", username="ha")
        await opened(life, "mixed", username="ann")
        server.ask("hdel", "kinmqtt:{old}:s", "a")
        server.ask("hset", "kinmqtt:{mixed}:s", "j", '[60,"eve",4]')

        found = {stored.client_id: stored for _, stored in (await life.sessions.iterate()).sessions}

        assert {name: (its.username, its.username_unverified) for name, its in found.items()} == {
            "old": ("ha", True),
            "mixed": ("eve", True),
        }
        assert await life.sessions.claim_for("old", THERE, Claimant("eve", "ha")) is None
        assert await life.sessions.claim_for("mixed", THERE, Claimant("ann")) is None
        assert await life.sessions.claim_for("old", THERE, Claimant(None, "ha")) is not None
        assert await life.sessions.claim_for("mixed", THERE, Claimant("eve")) is not None
        await life.plugin.stop()

    asyncio.run(run())


@pytest.mark.parametrize("name", ["a/b", 'q"uote', "\\back", "\U0001f600", "\x7f", "ü", "%u", "null"])
def test_a_user_is_told_from_another_whatever_its_name_says(server: RedisServer, name: str) -> None:
    """The names that Redis compares are those that clients have, with all their signs."""

    async def run() -> None:
        life = await begun(**at(server))
        await opened(life, "c", username=name)
        assert await life.sessions.claim_for("held", life.context.node, Claimant(name)) is not None
        for client_id in ("c", "held"):
            for other in (Claimant(None), Claimant(None, name), Claimant(name + "x"), Claimant("")):
                assert await life.sessions.claim_for(client_id, THERE, other) is None
            assert await life.sessions.claim_for(client_id, THERE, Claimant(name)) is not None
        await life.plugin.stop()

    asyncio.run(run())


def test_a_claim_that_a_failover_has_lost_is_nobody_elses(server: RedisServer) -> None:
    """Who claims a client behind it gets another epoch, above the one that was lost."""

    async def run() -> None:
        life = await begun(**at(server))
        before = await opened(life, "c")
        lost = (await life.sessions.claim("c", HERE)).epoch
        server.ask("hset", "kinmqtt:{c}:s", "e", str(before))

        claim = await life.sessions.claim("c", THERE)

        assert claim.previous_epoch == before < lost < claim.epoch
        with pytest.raises(Fenced):
            await kept(life, Append("c", lost, entry(1)))
        await life.plugin.stop()

    asyncio.run(run())


def test_what_a_paused_redis_has_still_to_read_is_not_carried_out(server: RedisServer) -> None:
    """What was told as failed does not come behind what is written since."""

    async def run() -> list[bytes]:
        life = await begun(**at(server))
        for number in range(1, 20):
            server.pause()
            with pytest.raises(ServiceUnavailable):
                await kept(life, Append("c", 1, entry(number, payload=b"old")), Purge("c", 1))
            server.go_on()
            await life.parts.link.back()
            await kept(life, Purge("c", 1), Append("c", 1, entry(number, payload=b"new")))
            found = [each.message.payload for each in await life.queues.read("c", 0, 10)]
            assert found == [b"new"]
            if number == 3:
                break
        await life.plugin.stop()
        return found

    assert asyncio.run(run()) == [b"new"]


def test_scripts_that_redis_has_forgotten_are_loaded_again(server: RedisServer) -> None:
    """SCRIPT FLUSH is nobody's failure."""

    async def run() -> list[int]:
        life = await begun(**at(server))
        await kept(life, Append("c", 1, entry(1)))
        server.ask("script", "flush")
        await kept(life, Append("c", 1, entry(2)))
        server.ask("script", "flush")
        found = [each.sequence for each in await life.queues.read("c", 0, 10)]
        await life.plugin.stop()
        return found

    assert asyncio.run(run()) == [1, 2]


def test_no_more_waits_than_may(server: RedisServer) -> None:
    """Beyond the bound a turn is refused at once, and nothing of it is kept."""

    async def run() -> None:
        life = await begun(**at(server), max_waiting=10)
        answers = []
        for number in range(1, 4):
            life.queues.apply([Append("c", 1, entry(8 * number + each)) for each in range(8)])
            if number < 3:
                answers.append(life.queues.commit())
                await asyncio.sleep(0)  # The first is on its way.
        with pytest.raises(ServiceUnavailable, match="more than 10 writes wait"):
            life.queues.commit()
        for answer in answers:
            assert answer is not None
            await answer
        assert life.queues.totals().queued == 16
        await life.plugin.stop()

    asyncio.run(run())


def test_one_bad_answer_is_one_clients(server: RedisServer) -> None:
    """What Redis refuses of one client fails the turns that write of it, and no other's; so it is with claims."""

    async def run() -> None:
        life = await begun(**at(server))
        server.ask("set", "kinmqtt:{bad}:s", "of somebody else")
        turns = (("first",), ("good",), ("bad", "beside"), ("beside",), ("other",))
        answers = []
        for names in turns:
            life.queues.apply([Append(name, 1, entry(len(answers) + 1)) for name in names])
            answers.append(life.queues.commit())
            if len(answers) == 1:
                await asyncio.sleep(0)  # It is on its way, and the others go together behind it.
        outcomes = await asyncio.gather(*(answer for answer in answers if answer), return_exceptions=True)
        claims = await asyncio.gather(
            *(life.sessions.claim(name, HERE) for name in ("bad", "good")), return_exceptions=True
        )
        await asyncio.gather(*life.plugin._tasks, return_exceptions=True)

        assert [type(outcome) for outcome in outcomes] == [
            type(None), type(None), ServiceUnavailable, ServiceUnavailable, type(None),
        ]  # fmt: skip
        assert isinstance(claims[0], ServiceUnavailable) and not isinstance(claims[1], BaseException)
        assert life.parts.link.is_up
        await life.plugin.stop()

    asyncio.run(run())


def test_whatever_goes_wrong_on_the_way_back_is_told_and_tried_again(server: RedisServer) -> None:
    """An error that nobody has thought of does not leave the broker away for good."""

    async def run() -> list[str]:
        life = await begun(**at(server))
        faults = iter([ValueError("unthought of")])

        async def stumble() -> None:
            for fault in faults:
                raise fault

        life.parts.link.on_back.append(stumble)
        server.kill()
        with pytest.raises(ServiceUnavailable):
            await kept(life, Append("c", 1, entry(1)))
        server.start()
        await life.parts.link.back()
        await kept(life, Append("c", 1, entry(1)))
        await life.plugin.stop()
        return life.context.log.texts("error")

    assert any("unthought of" in line and "Traceback" in line for line in asyncio.run(run()))


def test_too_few_connections_of_our_own_are_no_outage(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool that has none left fails a question, and Redis is there all the same."""

    async def run() -> None:
        life = await begun(**at(server))

        async def none_left(commands: Any) -> Any:
            raise MaxConnectionsError("Too many connections")

        with monkeypatch.context() as patch, pytest.raises(ServiceUnavailable):
            patch.setattr(life.parts.link._life, "ask", none_left)
            await life.sessions.iterate()
        assert life.parts.link.is_up and life.parts.link.losses == 0
        await life.sessions.iterate()
        await life.plugin.stop()

    asyncio.run(run())


def test_what_has_expired_is_told_though_a_mark_is_not_put_back(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is gone from Redis: who counts what waits must know."""

    async def run() -> list[int]:
        life = await begun(**at(server))
        epoch = await opened(life, "c")
        await kept(
            life, Append("c", epoch, entry(1, expires_at=NOW)), Append("c", epoch, entry(2, expires_at=NOW + 99))
        )
        ask = life.parts.asker.ask

        async def refuses_marks(*commands: Any) -> Any:
            if commands and commands[0][0] == "ZADD":
                raise ServiceUnavailable("away")
            return await ask(*commands)

        monkeypatch.setattr(life.parts.asker, "ask", refuses_marks)
        found = [each.sequence for _, each in await life.queues.expire(NOW + 1, 10)]
        await life.plugin.stop()
        return found

    assert asyncio.run(run()) == [1]


def test_what_is_retained_here_is_newer_than_what_others_have_written(server: RedisServer) -> None:
    """The time of a deletion is known in the next life, and that of another broker's write with the next answer."""

    async def run() -> list[float]:
        one = await begun(HERE, **at(server))
        one.retained.put([RetainWrite(message("t", b""), RetainVersion(9.5, 1, 1))])
        await (one.retained.commit() or asyncio.sleep(0))
        two = await begun(THERE, **at(server))
        known = [one.retained.newest(), two.retained.newest()]
        one.retained.put([RetainWrite(message("t", b"x"), RetainVersion(20.5, 1, 2))])
        await (one.retained.commit() or asyncio.sleep(0))
        two.retained.put([RetainWrite(message("t", b"late"), RetainVersion(10.5, 2, 1))])
        await (two.retained.commit() or asyncio.sleep(0))
        known.append(two.retained.newest())
        assert two.parts.ledger.skipped == 1
        assert any("clocks" in line for line in two.context.log.texts("warn"))
        for life in (one, two):
            await life.plugin.stop()
        return known

    assert asyncio.run(run()) == [9.5, 9.5, 20.5]


def test_indexes_that_have_too_much_are_swept(server: RedisServer) -> None:
    """What an index names and the client's own keys don't confirm is not answered, and is gone from the index."""

    async def run() -> None:
        life = await begun(**at(server))
        epoch = await opened(life, "c")
        life.sessions.apply([ReleaseSession("c", epoch, NOW, NOW), DiscardSession("c", epoch)])
        answer = life.sessions.commit()
        assert answer is not None
        await answer

        assert not await life.sessions.expired(NOW, 10)
        assert not await life.sessions.due_wills(NOW, 10)
        assert not await life.sessions.orphans(life.context.node, 10)
        await life.parts.refresh.everything(life.parts.link.ask)

        assert not [key for key in server.ask("keys", "*").split() if "{i" in key]
        await life.plugin.stop()

    asyncio.run(run())


def test_what_another_broker_keeps_is_counted_in_time(server: RedisServer) -> None:
    """Counts are those of all brokers after a refresh."""

    async def run() -> None:
        one, two = await begun(HERE, **at(server)), await begun(THERE, **at(server))
        await opened(one, "c")
        await kept(one, Append("c", 10**15, entry(1)))
        one.retained.put([RetainWrite(message("t"), RetainVersion(1.0, 1, 1))])
        answer = one.retained.commit()
        assert answer is not None
        await answer
        before = (two.sessions.count(), two.queues.totals().queued)

        await two.parts.refresh.everything(two.parts.link.ask)

        assert before == (0, 0)
        assert (two.sessions.count(), two.queues.totals().queued, two.retained.count()) == (1, 1, 1)
        for life in (one, two):
            await life.plugin.stop()

    asyncio.run(run())


def test_what_waits_for_another_brokers_client_is_its_to_expire(server: RedisServer) -> None:
    """Its owner counts what is in the queue."""

    async def run() -> None:
        one, two = await begun(HERE, **at(server)), await begun(THERE, **at(server))
        epoch = await opened(one, "c")
        await kept(one, Append("c", epoch, entry(1, expires_at=NOW)))

        assert not await two.queues.expire(NOW + 1, 10)
        assert [each.sequence for _, each in await one.queues.expire(NOW + 1, 10)] == [1]
        for life in (one, two):
            await life.plugin.stop()

    asyncio.run(run())


def test_queues_of_another_broker_delay_nobody(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much has expired that waits for a node's clients that is gone, what waits here is found in time."""
    monkeypatch.setattr(queues, "PAGE", 4)
    together = [name for name in map(str, range(400)) if shard_of(encoded(name)) == 0]
    theirs, ours = together[:12], together[12:14]

    async def run() -> list[list[str]]:
        one, two = await begun(HERE, **at(server)), await begun(THERE, **at(server))
        for life, names, moment in ((two, theirs, NOW), (one, ours, NOW + 1)):
            for name in names:
                await kept(life, Append(name, await opened(life, name), entry(1, expires_at=moment)))
        looks = [[name for name, _ in await one.queues.expire(NOW + 2, 1)] for _ in range(8)]
        left = {name for name, _ in await two.queues.expire(NOW + 2, 100)}
        for life in (one, two):
            await life.plugin.stop()
        assert left == set(theirs)
        return looks

    looks = asyncio.run(run())

    assert sorted(name for look in looks for name in look) == sorted(ours)


def test_what_another_broker_left_overdue_delays_nobody(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much is due of a node that is gone, what has its home here is found, a look or two later."""
    monkeypatch.setattr(sessions, "PAGE", 4)
    together = [name for name in map(str, range(400)) if shard_of(encoded(name)) == 0]
    theirs, ours = together[:12], together[12:14]

    async def run() -> None:
        one, two = await begun(HERE, **at(server)), await begun(THERE, **at(server))
        for life, names, moment in ((two, theirs, NOW), (one, ours, NOW + 1)):
            for name in names:
                epoch = await opened(life, name, will=Will(Message("wills")))
                life.sessions.apply([ReleaseSession(name, epoch, moment, moment)])
            await (life.sessions.commit() or asyncio.sleep(0))

        for ask in (one.sessions.expired, one.sessions.due_wills):
            looks = [[stored.client_id for _, stored in await ask(NOW + 1, 1)] for _ in range(5)]
            together_in_one = {stored.client_id for _, stored in await ask(NOW + 1, 100)}
            assert ours[:1] in looks[:3]
            assert all(look in ([], ours[:1], ours[1:]) for look in looks)
            assert together_in_one == set(ours)
        assert {stored.client_id for _, stored in await two.sessions.expired(NOW + 1, 100)} == set(theirs)
        for life in (one, two):
            await life.plugin.stop()

    asyncio.run(run())


def test_while_redis_is_away_nobody_gets_by_his_session(server: RedisServer) -> None:
    """A client of which a session is stored is not let in without it; others get an epoch that outranks nobody's."""

    async def run() -> None:
        life = await begun(**at(server))
        await opened(life, "kept")
        known = (await life.sessions.claim("passing", HERE)).epoch
        server.pause()

        with pytest.raises(ServiceUnavailable):
            await life.sessions.claim("kept", HERE)
        assert (await life.sessions.claim("passing", HERE)).epoch == known
        assert (await life.sessions.claim("new", HERE)).epoch == 0
        life.sessions.release("passing", known)
        assert life.parts.ledger.epochs.keys() == {"kept"}

        server.go_on()
        await life.parts.link.back()
        assert (await life.sessions.claim("passing", HERE)).previous_epoch == known
        await life.plugin.stop()

    asyncio.run(run())


def test_phases_put_first_what_must_not_be_lost() -> None:
    """Entries go before the identifier that says they were taken over, except behind what empties their own queue."""
    p, x, y = "publisher", "x", "y"
    writes = {
        p: [(0, InboundOpen(p, 1, 7)), (0, Append(p, 1, entry(1)))],
        x: [(0, Remove(x, 1, 1)), (0, Append(x, 1, entry(2)))],
        y: [(0, Purge(y, 1)), (0, Append(y, 1, entry(1)))],
    }

    first, second, third = phases(writes)  # type: ignore[arg-type]

    assert {name: [type(write) for _, write in its] for name, its in first.items()} == {p: [Append], x: [Append]}
    assert {name: [type(write) for _, write in its] for name, its in second.items()} == {y: [Purge, Append]}
    assert {name: [type(write) for _, write in its] for name, its in third.items()} == {p: [InboundOpen], x: [Remove]}


def test_phases_leave_what_is_sent_in_order() -> None:
    """An entry that is sent at once does not get ahead of one that was sent from the queue before it."""
    writes = {
        "x": [(0, Send("x", 1, 1, 5)), (0, Remove("x", 1, 0)), (0, Append("x", 1, entry(2), 6))],
        "y": [(0, Send("y", 1, 1, 5)), (0, Remove("y", 1, 0))],
    }

    first, third = phases(writes)  # type: ignore[arg-type]

    assert {name: [type(write) for _, write in its] for name, its in first.items()} == {"x": [Send, Append]}
    later = {name: [type(write) for _, write in its] for name, its in third.items()}
    assert later == {"x": [Remove], "y": [Send, Remove]}


# What is refused, and what depends on it


async def refused(life: Life, *writes: Any) -> set[str]:
    """The clients of whom a turn's writes are refused."""
    with pytest.raises(Fenced) as raised:
        await kept(life, *writes)
    return set(raised.value.client_ids)


def test_what_a_newer_owner_refuses_was_not_taken_over(server: RedisServer) -> None:
    """A QoS 2 message that did not reach the session it is meant for may come again under its packet identifier.

    That holds from the moment of the refusal: the broker may end before it can take the identifier back.
    """

    async def run() -> tuple[set[str], dict[str, frozenset[int]]]:
        life = await begun(**at(server))
        epochs = {name: await opened(life, name) for name in ("s", "t", "p", "q")}
        await life.sessions.claim("s", THERE)
        to_s = entry(1, topic="a", publisher=Publisher("p"))
        to_t = entry(1, topic="b", publisher=Publisher("q"))
        names = await refused(
            life,
            Append("t", epochs["t"], to_t),
            InboundOpen("p", epochs["p"], 7),
            Append("s", epochs["s"], to_s),
            InboundOpen("q", epochs["q"], 8),
        )
        found = {name: (await life.queues.load(name)).inbound for name in ("p", "q")}
        await life.plugin.stop()
        return names, found

    names, inbound = asyncio.run(run())

    assert names == {"s"}
    assert inbound == {"p": frozenset(), "q": frozenset({8})}


def test_a_later_phase_leaves_out_what_an_earlier_one_has_refused() -> None:
    """In a cluster, where the identifier goes behind the message, it does not go where that was refused."""
    append = Append("s", 1, entry(1, publisher=Publisher("p")))
    other = Append("s", 1, entry(2, publisher=Publisher("p")))
    clients = {
        "s": [(0, append), (1, other)],
        "p": [(0, InboundOpen("p", 1, 7)), (1, InboundOpen("p", 1, 8)), (0, Purge("p", 1))],
    }

    left = without_refused(clients, targets_of(clients), {0: {"s"}})

    assert left == {"s": clients["s"], "p": [(1, InboundOpen("p", 1, 8)), (0, Purge("p", 1))]}


def test_nothing_is_kept_for_sessions_that_redis_has_lost(server: RedisServer) -> None:
    """Redis was emptied: a write is refused as a newer owner would, leaves nothing behind, and it is told of."""

    async def run() -> tuple[set[str], int, list[str], list[tuple[str, int]]]:
        life = await begun(**at(server))
        taken: list[tuple[str, int]] = []
        life.sessions.when_taken(lambda client_id, epoch: taken.append((client_id, epoch)))
        epochs = {name: await opened(life, name) for name in ("s", "idle")}
        await life.parts.link.ask([("FLUSHALL",)])
        names = await refused(life, Append("s", epochs["s"], entry(1)))
        await life.parts.sessions.look_for_taken(life.parts.asked)
        left = len(await life.queues.read("s", 0, 10))
        logged = [line for line in life.context.log.texts("error") if "has lost 1 sessions" in line]
        await life.plugin.stop()
        return names, left, logged, [(name, epoch - epochs[name]) for name, epoch in taken]

    names, left, logged, taken = asyncio.run(run())

    assert (names, left, taken) == ({"s"}, 0, [("idle", 0)])
    assert len(logged) == 2


@pytest.mark.parametrize("ends", [True, False])
def test_what_fails_behind_a_loss_fails_for_it(server: RedisServer, ends: bool) -> None:
    """Where the connection is closed that one is about to make, redis-py meets a writer that is ``None``."""

    async def run() -> BaseException | None:
        life = await begun(**at(server))
        link = life.parts.link

        async def meets_no_writer(commands: object) -> list[Any]:
            if ends:
                link._failed(link._life, TimeoutError())
            raise AttributeError("'NoneType' object has no attribute 'writelines'")

        ask, link._life.ask = link._life.ask, meets_no_writer
        broken = link._life
        [failure] = await asyncio.gather(link.ask([("PING",)]), return_exceptions=True)
        broken.ask = ask
        await life.plugin.stop()
        return failure

    assert isinstance(asyncio.run(run()), ServiceUnavailable if ends else AttributeError)
