"""Tests of what the contract suites can't see: races, lost answers, stale index entries, and limits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import MaxConnectionsError

from kinmqtt_redis_session import queues, sessions
from kinmqtt_redis_session.keys import encoded, shard_of
from kinmqtt_redis_session.phases import phases, targets_of, without_refused
from kinmqtt_redis_session.writes import ClientWrite
from kinmqtt_spi.errors import Fenced, ServiceUnavailable
from kinmqtt_spi.services.queue import Append, InboundOpen, Purge, Remove, Send
from kinmqtt_spi.services.retain import RetainVersion, RetainWrite
from kinmqtt_spi.services.session import Claimant, DiscardSession, OpenSession, ReleaseSession
from kinmqtt_spi.testing.build import HERE, NOW, THERE, entry, message, session
from kinmqtt_spi.values import Message, NodeIdentity, Publisher, Will
from redis_harness.instances import Instance, start_instance
from redis_harness.servers import RedisServer, redis_server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """An empty server."""
    with redis_server(tmp_path / "redis") as server:
        yield server


def at(server: RedisServer) -> dict[str, Any]:
    """The settings for a server."""
    return {"host": "127.0.0.1", "port": server.port}


async def committed(instance: Instance, *writes: Any) -> None:
    """Commit a turn's queue writes."""
    instance.queues.apply(writes)
    answer = instance.queues.commit()
    assert answer is not None
    await answer


async def opened(instance: Instance, name: str, **more: Any) -> int:
    """Claim and open a session; its epoch."""
    epoch = (await instance.sessions.claim(name, instance.context.node)).epoch
    instance.sessions.apply([OpenSession(epoch, session(name, **more))])
    answer = instance.sessions.commit()
    assert answer is not None
    await answer
    return epoch


def test_six_brokers_race_for_one_client(server: RedisServer) -> None:
    """No write under an older epoch is stored after a newer claim, and no committed write is missing."""

    async def race() -> tuple[list[int], list[tuple[int, bytes]], list[bytes]]:
        lives = [
            await start_instance(NodeIdentity(f"n{number}", number), **at(server), timeout_s=20.0)
            for number in range(1, 7)
        ]
        epochs: list[int] = []
        written: list[bytes] = []

        async def contend(instance: Instance) -> None:
            for _ in range(30):
                epoch = (await instance.sessions.claim("x", instance.context.node)).epoch
                epochs.append(epoch)
                state = await instance.queues.load("x")
                sequence = state.last_sequence + 1
                its = entry(sequence, payload=b"%d" % epoch)
                try:
                    await committed(instance, Append("x", epoch, its))
                except Fenced:
                    continue
                written.append(b"%d" % epoch)

        await asyncio.gather(*(contend(instance) for instance in lives))
        entries = await lives[0].queues.read("x", 0, 1000)
        for instance in lives:
            await instance.plugin.stop()
        return epochs, [(each.sequence, each.message.payload) for each in entries], written

    epochs, entries, written = asyncio.run(race())

    assert len(set(epochs)) == len(epochs) == 180
    assert sorted(payload for _, payload in entries) == sorted(written)
    assert [int(payload) for _, payload in entries] == sorted(int(payload) for _, payload in entries)
    assert written


def test_a_claim_whose_answer_was_lost_is_undone(server: RedisServer) -> None:
    """No one knows its epoch; the previous owner continues under the old one."""

    async def run() -> None:
        instance = await start_instance(**at(server))
        epoch = await opened(instance, "c")
        server.pause()
        with pytest.raises(ServiceUnavailable):
            await instance.sessions.claim("c", THERE)
        server.go_on()
        await instance.parts.link.back()

        await committed(instance, Append("c", epoch, entry(1)))

        assert (await instance.sessions.claim("c", HERE)).previous_epoch == epoch
        await instance.plugin.stop()

    asyncio.run(run())


def test_a_claim_that_is_undone_leaves_the_user(server: RedisServer) -> None:
    """The client id still belongs to the previous user; another user is refused."""

    async def run() -> None:
        instance = await start_instance(**at(server))
        held = await instance.sessions.claim_for("c", instance.context.node, Claimant("ann"))
        assert held is not None
        server.pause()
        # Answered locally; Redis carries the claim out when it continues.
        assert (await instance.sessions.claim("c", instance.context.node)).epoch == held.epoch
        server.go_on()
        await instance.parts.link.back()

        assert await instance.sessions.claim_for("c", THERE, Claimant("bob")) is None
        again = await instance.sessions.claim_for("c", THERE, Claimant("ann"))
        assert again is not None and again.previous_epoch == held.epoch
        await instance.plugin.stop()

    asyncio.run(run())


def test_a_released_client_id_is_free_before_redis_knows_it(server: RedisServer) -> None:
    """A release is not awaited, so a claim that follows need not wait for it either."""

    async def run() -> None:
        instance = await start_instance(**at(server))
        node = instance.context.node
        held = await instance.sessions.claim_for("c", node, Claimant("ann"))
        assert held is not None

        def never_sent(answer: Awaitable[Any]) -> None:
            assert isinstance(answer, Coroutine)
            answer.close()

        instance.sessions.spawn = never_sent

        assert await instance.sessions.claim_for("c", node, Claimant("bob")) is None
        instance.sessions.release("c", held.epoch)

        assert await instance.sessions.claim_for("c", node, Claimant("bob")) is not None
        await instance.plugin.stop()

    asyncio.run(run())


def test_sessions_of_an_older_version_have_an_unverified_user(server: RedisServer) -> None:
    """This holds if no field says that the name was verified, or if an older broker has replaced the name."""

    async def run() -> None:
        instance = await start_instance(**at(server))
        await opened(instance, "old", username="ha")
        await opened(instance, "mixed", username="ann")
        server.ask("hdel", "kinmqtt:{old}:s", "a")
        server.ask("hset", "kinmqtt:{mixed}:s", "j", '[60,"eve",4]')

        found = {stored.client_id: stored for _, stored in (await instance.sessions.iterate()).sessions}

        assert {name: (its.username, its.username_unverified) for name, its in found.items()} == {
            "old": ("ha", True),
            "mixed": ("eve", True),
        }
        assert await instance.sessions.claim_for("old", THERE, Claimant("eve", "ha")) is None
        assert await instance.sessions.claim_for("mixed", THERE, Claimant("ann")) is None
        assert await instance.sessions.claim_for("old", THERE, Claimant(None, "ha")) is not None
        assert await instance.sessions.claim_for("mixed", THERE, Claimant("eve")) is not None
        await instance.plugin.stop()

    asyncio.run(run())


@pytest.mark.parametrize("name", ["a/b", 'q"uote', "\\back", "\U0001f600", "\x7f", "ü", "%u", "null"])
def test_users_are_distinguished_whatever_their_names_contain(server: RedisServer, name: str) -> None:
    """Redis compares names exactly, with all their characters."""

    async def run() -> None:
        instance = await start_instance(**at(server))
        await opened(instance, "c", username=name)
        assert await instance.sessions.claim_for("held", instance.context.node, Claimant(name)) is not None
        for client_id in ("c", "held"):
            for other in (Claimant(None), Claimant(None, name), Claimant(name + "x"), Claimant("")):
                assert await instance.sessions.claim_for(client_id, THERE, other) is None
            assert await instance.sessions.claim_for(client_id, THERE, Claimant(name)) is not None
        await instance.plugin.stop()

    asyncio.run(run())


def test_the_epoch_of_a_claim_lost_in_a_failover_is_not_reused(server: RedisServer) -> None:
    """The next claim gets another epoch, above the lost one."""

    async def run() -> None:
        instance = await start_instance(**at(server))
        before = await opened(instance, "c")
        lost = (await instance.sessions.claim("c", HERE)).epoch
        server.ask("hset", "kinmqtt:{c}:s", "e", str(before))

        claim = await instance.sessions.claim("c", THERE)

        assert claim.previous_epoch == before < lost < claim.epoch
        with pytest.raises(Fenced):
            await committed(instance, Append("c", lost, entry(1)))
        await instance.plugin.stop()

    asyncio.run(run())


def test_commands_that_a_paused_redis_has_not_read_are_not_carried_out(server: RedisServer) -> None:
    """Writes reported as failed are not carried out after later writes."""

    async def run() -> list[bytes]:
        instance = await start_instance(**at(server))
        for number in range(1, 20):
            server.pause()
            with pytest.raises(ServiceUnavailable):
                await committed(instance, Append("c", 1, entry(number, payload=b"old")), Purge("c", 1))
            server.go_on()
            await instance.parts.link.back()
            await committed(instance, Purge("c", 1), Append("c", 1, entry(number, payload=b"new")))
            found = [each.message.payload for each in await instance.queues.read("c", 0, 10)]
            assert found == [b"new"]
            if number == 3:
                break
        await instance.plugin.stop()
        return found

    assert asyncio.run(run()) == [b"new"]


def test_flushed_scripts_are_loaded_again(server: RedisServer) -> None:
    """SCRIPT FLUSH fails no write."""

    async def run() -> list[int]:
        instance = await start_instance(**at(server))
        await committed(instance, Append("c", 1, entry(1)))
        server.ask("script", "flush")
        await committed(instance, Append("c", 1, entry(2)))
        server.ask("script", "flush")
        found = [each.sequence for each in await instance.queues.read("c", 0, 10)]
        await instance.plugin.stop()
        return found

    assert asyncio.run(run()) == [1, 2]


def test_waiting_writes_are_limited(server: RedisServer) -> None:
    """Beyond the limit a turn is refused at once, and nothing of it is stored."""

    async def run() -> None:
        instance = await start_instance(**at(server), max_waiting=10)
        answers = []
        for number in range(1, 4):
            instance.queues.apply([Append("c", 1, entry(8 * number + each)) for each in range(8)])
            if number < 3:
                answers.append(instance.queues.commit())
                await asyncio.sleep(0)  # The first is on its way.
        with pytest.raises(ServiceUnavailable, match="more than 10 writes wait"):
            instance.queues.commit()
        for answer in answers:
            assert answer is not None
            await answer
        assert instance.queues.totals().queued == 16
        await instance.plugin.stop()

    asyncio.run(run())


def test_an_error_for_one_client_fails_only_its_turns(server: RedisServer) -> None:
    """An error for one client fails the turns that write to it, and no others; the same holds for claims."""

    async def run() -> None:
        instance = await start_instance(**at(server))
        server.ask("set", "kinmqtt:{bad}:s", "of somebody else")
        turns = (("first",), ("good",), ("bad", "beside"), ("beside",), ("other",))
        answers: list[Awaitable[None] | None] = []
        for names in turns:
            instance.queues.apply([Append(name, 1, entry(len(answers) + 1)) for name in names])
            answers.append(instance.queues.commit())
            if len(answers) == 1:
                await asyncio.sleep(0)  # It is on its way, and the others go together behind it.
        outcomes = await asyncio.gather(*(answer for answer in answers if answer), return_exceptions=True)
        claims = await asyncio.gather(
            *(instance.sessions.claim(name, HERE) for name in ("bad", "good")), return_exceptions=True
        )
        await asyncio.gather(*instance.plugin._tasks, return_exceptions=True)

        assert [type(outcome) for outcome in outcomes] == [
            type(None), type(None), ServiceUnavailable, ServiceUnavailable, type(None),
        ]  # fmt: skip
        assert isinstance(claims[0], ServiceUnavailable) and not isinstance(claims[1], BaseException)
        assert instance.parts.link.is_up
        await instance.plugin.stop()

    asyncio.run(run())


def test_an_error_while_reconnecting_is_logged_and_retried(server: RedisServer) -> None:
    """After an unexpected error the link still reconnects."""

    async def run() -> list[str]:
        instance = await start_instance(**at(server))
        faults = iter([ValueError("unthought of")])

        async def stumble() -> None:
            for fault in faults:
                raise fault

        instance.parts.link.on_back.append(stumble)
        server.kill()
        with pytest.raises(ServiceUnavailable):
            await committed(instance, Append("c", 1, entry(1)))
        server.start()
        await instance.parts.link.back()
        await committed(instance, Append("c", 1, entry(1)))
        await instance.plugin.stop()
        return instance.context.log.texts("error")

    assert any("unthought of" in line and "Traceback" in line for line in asyncio.run(run()))


def test_an_exhausted_connection_pool_is_no_outage(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool without a free connection fails a read, but Redis still counts as up."""

    async def run() -> None:
        instance = await start_instance(**at(server))

        async def none_left(commands: Any) -> Any:
            raise MaxConnectionsError("Too many connections")

        with monkeypatch.context() as patch, pytest.raises(ServiceUnavailable):
            patch.setattr(instance.parts.link._connections, "execute", none_left)
            await instance.sessions.iterate()
        assert instance.parts.link.is_up and instance.parts.link.losses == 0
        await instance.sessions.iterate()
        await instance.plugin.stop()

    asyncio.run(run())


def test_expired_entries_are_reported_though_an_index_update_fails(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entries are gone from Redis, so the counters must know."""

    async def run() -> list[int]:
        instance = await start_instance(**at(server))
        epoch = await opened(instance, "c")
        await committed(
            instance, Append("c", epoch, entry(1, expires_at=NOW)), Append("c", epoch, entry(2, expires_at=NOW + 99))
        )
        execute = instance.parts.reader.execute

        async def refuses_marks(*commands: Any) -> Any:
            if commands and commands[0][0] == "ZADD":
                raise ServiceUnavailable("away")
            return await execute(*commands)

        monkeypatch.setattr(instance.parts.reader, "execute", refuses_marks)
        found = [each.sequence for _, each in await instance.queues.expire(NOW + 1, 10)]
        await instance.plugin.stop()
        return found

    assert asyncio.run(run()) == [1]


def test_newest_includes_messages_of_other_brokers(server: RedisServer) -> None:
    """The next instance knows the time of a deletion; the next answer reports that of another broker's write."""

    async def run() -> list[float]:
        one = await start_instance(HERE, **at(server))
        one.retained.put([RetainWrite(message("t", b""), RetainVersion(9.5, 1, 1))])
        await (one.retained.commit() or asyncio.sleep(0))
        two = await start_instance(THERE, **at(server))
        known = [one.retained.newest(), two.retained.newest()]
        one.retained.put([RetainWrite(message("t", b"x"), RetainVersion(20.5, 1, 2))])
        await (one.retained.commit() or asyncio.sleep(0))
        two.retained.put([RetainWrite(message("t", b"late"), RetainVersion(10.5, 2, 1))])
        await (two.retained.commit() or asyncio.sleep(0))
        known.append(two.retained.newest())
        assert two.parts.pipeline.skipped == 1
        assert any("clocks" in line for line in two.context.log.texts("warn"))
        for instance in (one, two):
            await instance.plugin.stop()
        return known

    assert asyncio.run(run()) == [9.5, 9.5, 20.5]


def test_a_retained_message_is_skipped_whose_publisher_has_moved(server: RedisServer) -> None:
    """A broker that stood still writes it late, with a newer version; the client has published again elsewhere."""

    async def run() -> list[bytes]:
        one, two = await start_instance(HERE, **at(server)), await start_instance(THERE, **at(server))
        old = (await one.sessions.claim("p", HERE)).epoch
        new = (await two.sessions.claim("p", THERE)).epoch
        for instance, payload, counter, epoch in ((two, b"new", 1, new), (one, b"stale", 2, old)):
            its = message("t", payload, publisher=Publisher("p"))
            instance.retained.put([RetainWrite(its, RetainVersion(NOW, 1, counter), publisher_epoch=epoch)])
            await (instance.retained.commit() or asyncio.sleep(0))
        page = await one.retained.match("t")
        for instance in (one, two):
            await instance.plugin.stop()
        return [each.payload for each in page.messages]

    assert asyncio.run(run()) == [b"new"]


def test_stale_index_entries_are_removed(server: RedisServer) -> None:
    """Index entries that the client's own keys don't confirm are not returned, and are removed from the index."""

    async def run() -> None:
        instance = await start_instance(**at(server))
        epoch = await opened(instance, "c")
        instance.sessions.apply([ReleaseSession("c", epoch, NOW, NOW), DiscardSession("c", epoch)])
        answer = instance.sessions.commit()
        assert answer is not None
        await answer

        assert not await instance.sessions.expired(NOW, 10)
        assert not await instance.sessions.due_wills(NOW, 10)
        assert not await instance.sessions.owned_by(instance.context.node, 10)
        await instance.parts.resync.run(instance.parts.link.execute)

        assert not [key for key in server.ask("keys", "*").split() if "{i" in key]
        await instance.plugin.stop()

    asyncio.run(run())


def test_a_resync_counts_what_other_brokers_have_stored(server: RedisServer) -> None:
    """After a resync the counters include all brokers' writes."""

    async def run() -> None:
        one, two = await start_instance(HERE, **at(server)), await start_instance(THERE, **at(server))
        await opened(one, "c")
        await committed(one, Append("c", 10**15, entry(1)))
        one.retained.put([RetainWrite(message("t"), RetainVersion(1.0, 1, 1))])
        answer = one.retained.commit()
        assert answer is not None
        await answer
        before = (two.sessions.count(), two.queues.totals().queued)

        await two.parts.resync.run(two.parts.link.execute)

        assert before == (0, 0)
        assert (two.sessions.count(), two.queues.totals().queued, two.retained.count()) == (1, 1, 1)
        for instance in (one, two):
            await instance.plugin.stop()

    asyncio.run(run())


def test_entries_for_another_brokers_client_are_left_to_it(server: RedisServer) -> None:
    """The owner counts the entries of its queues."""

    async def run() -> None:
        one, two = await start_instance(HERE, **at(server)), await start_instance(THERE, **at(server))
        epoch = await opened(one, "c")
        await committed(one, Append("c", epoch, entry(1, expires_at=NOW)))

        assert not await two.queues.expire(NOW + 1, 10)
        assert [each.sequence for _, each in await one.queues.expire(NOW + 1, 10)] == [1]
        for instance in (one, two):
            await instance.plugin.stop()

    asyncio.run(run())


def test_expired_queues_of_another_broker_do_not_hide_our_own(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any number of expired entries of a node that is gone does not hide this node's entries."""
    monkeypatch.setattr(queues, "PAGE", 4)
    together = [name for name in map(str, range(400)) if shard_of(encoded(name)) == 0]
    theirs, ours = together[:12], together[12:14]

    async def run() -> list[list[str]]:
        one, two = await start_instance(HERE, **at(server)), await start_instance(THERE, **at(server))
        for instance, names, moment in ((two, theirs, NOW), (one, ours, NOW + 1)):
            for name in names:
                await committed(instance, Append(name, await opened(instance, name), entry(1, expires_at=moment)))
        looks = [[name for name, _ in await one.queues.expire(NOW + 2, 1)] for _ in range(8)]
        left = {name for name, _ in await two.queues.expire(NOW + 2, 100)}
        for instance in (one, two):
            await instance.plugin.stop()
        assert left == set(theirs)
        return looks

    looks = asyncio.run(run())

    assert sorted(name for look in looks for name in look) == sorted(ours)


def test_due_sessions_of_another_broker_do_not_hide_our_own(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any number of due sessions of a node that is gone does not hide this node's for more than a call or two."""
    monkeypatch.setattr(sessions, "PAGE", 4)
    together = [name for name in map(str, range(400)) if shard_of(encoded(name)) == 0]
    theirs, ours = together[:12], together[12:14]

    async def run() -> None:
        one, two = await start_instance(HERE, **at(server)), await start_instance(THERE, **at(server))
        for instance, names, moment in ((two, theirs, NOW), (one, ours, NOW + 1)):
            for name in names:
                epoch = await opened(instance, name, will=Will(Message("wills")))
                instance.sessions.apply([ReleaseSession(name, epoch, moment, moment)])
            await (instance.sessions.commit() or asyncio.sleep(0))

        for execute in (one.sessions.expired, one.sessions.due_wills):
            looks = [[stored.client_id for _, stored in await execute(NOW + 1, 1)] for _ in range(5)]
            together_in_one = {stored.client_id for _, stored in await execute(NOW + 1, 100)}
            assert ours[:1] in looks[:3]
            assert all(look in ([], ours[:1], ours[1:]) for look in looks)
            assert together_in_one == set(ours)
        assert {stored.client_id for _, stored in await two.sessions.expired(NOW + 1, 100)} == set(theirs)
        for instance in (one, two):
            await instance.plugin.stop()

    asyncio.run(run())


def test_no_stored_session_is_bypassed_while_redis_is_away(server: RedisServer) -> None:
    """A client with a stored session is not accepted; others get an epoch that overrides no owner."""

    async def run() -> None:
        instance = await start_instance(**at(server))
        await opened(instance, "kept")
        known = (await instance.sessions.claim("passing", HERE)).epoch
        server.pause()

        with pytest.raises(ServiceUnavailable):
            await instance.sessions.claim("kept", HERE)
        assert (await instance.sessions.claim("passing", HERE)).epoch == known
        assert (await instance.sessions.claim("new", HERE)).epoch == 0
        instance.sessions.release("passing", known)
        assert instance.parts.pipeline.epochs.keys() == {"kept"}

        server.go_on()
        await instance.parts.link.back()
        assert (await instance.sessions.claim("passing", HERE)).previous_epoch == known
        await instance.plugin.stop()

    asyncio.run(run())


def test_phases_begin_with_writes_that_must_not_be_lost() -> None:
    """Entries precede the identifier that acknowledges them, except after a purge of their own queue."""
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


def test_phases_preserve_the_order_of_sends() -> None:
    """An entry that is sent at once does not overtake one that was sent from the queue earlier."""
    writes = {
        "x": [(0, Send("x", 1, 1, 5)), (0, Remove("x", 1, 0)), (0, Append("x", 1, entry(2), 6))],
        "y": [(0, Send("y", 1, 1, 5)), (0, Remove("y", 1, 0))],
    }

    first, third = phases(writes)  # type: ignore[arg-type]

    assert {name: [type(write) for _, write in its] for name, its in first.items()} == {"x": [Send, Append]}
    later = {name: [type(write) for _, write in its] for name, its in third.items()}
    assert later == {"x": [Remove], "y": [Send, Remove]}


# Refused writes, and what depends on them


async def refused(instance: Instance, *writes: Any) -> set[str]:
    """The clients whose writes in a turn are refused."""
    with pytest.raises(Fenced) as raised:
        await committed(instance, *writes)
    return set(raised.value.client_ids)


def test_no_packet_identifier_is_stored_for_a_message_that_a_newer_owner_refuses(server: RedisServer) -> None:
    """A QoS 2 message that did not reach its target session may be sent again under its packet identifier.

    This holds from the moment of the refusal: the broker may end before it can remove the identifier.
    """

    async def run() -> tuple[set[str], dict[str, frozenset[int]]]:
        instance = await start_instance(**at(server))
        epochs = {name: await opened(instance, name) for name in ("s", "t", "p", "q")}
        await instance.sessions.claim("s", THERE)
        to_s = entry(1, topic="a", publisher=Publisher("p"))
        to_t = entry(1, topic="b", publisher=Publisher("q"))
        names = await refused(
            instance,
            Append("t", epochs["t"], to_t),
            InboundOpen("p", epochs["p"], 7),
            Append("s", epochs["s"], to_s),
            InboundOpen("q", epochs["q"], 8),
        )
        found = {name: (await instance.queues.load(name)).inbound for name in ("p", "q")}
        await instance.plugin.stop()
        return names, found

    names, inbound = asyncio.run(run())

    assert names == {"s"}
    assert inbound == {"p": frozenset(), "q": frozenset({8})}


def test_a_later_phase_leaves_out_identifiers_of_refused_messages() -> None:
    """In a cluster the identifier follows the message, and is left out if the message was refused."""
    append = Append("s", 1, entry(1, publisher=Publisher("p")))
    other = Append("s", 1, entry(2, publisher=Publisher("p")))
    clients: dict[str, list[tuple[int, ClientWrite]]] = {
        "s": [(0, append), (1, other)],
        "p": [(0, InboundOpen("p", 1, 7)), (1, InboundOpen("p", 1, 8)), (0, Purge("p", 1))],
    }

    left = without_refused(clients, targets_of(clients), {0: {"s"}})

    assert left == {"s": clients["s"], "p": [(1, InboundOpen("p", 1, 8)), (0, Purge("p", 1))]}


def test_writes_for_sessions_that_redis_has_lost_are_refused(server: RedisServer) -> None:
    """If Redis was emptied, a write is fenced and leaves nothing behind, and the loss is logged."""

    async def run() -> tuple[set[str], int, list[str], list[tuple[str, int]]]:
        instance = await start_instance(**at(server))
        taken: list[tuple[str, int]] = []
        instance.sessions.on_taken_over(lambda client_id, epoch: taken.append((client_id, epoch)))
        epochs = {name: await opened(instance, name) for name in ("s", "idle")}
        await instance.parts.link.execute([("FLUSHALL",)])
        names = await refused(instance, Append("s", epochs["s"], entry(1)))
        await instance.parts.sessions.check_taken_over(instance.parts.execute)
        left = len(await instance.queues.read("s", 0, 10))
        logged = [line for line in instance.context.log.texts("error") if "has lost 1 sessions" in line]
        await instance.plugin.stop()
        return names, left, logged, [(name, epoch - epochs[name]) for name, epoch in taken]

    names, left, logged, taken = asyncio.run(run())

    assert (names, left, taken) == ({"s"}, 0, [("idle", 0)])
    assert len(logged) == 2


@pytest.mark.parametrize("ends", [True, False])
def test_errors_after_a_lost_connection_are_caused_by_it(server: RedisServer, ends: bool) -> None:
    """If a connection is closed while it is being made, redis-py raises because its writer is ``None``."""

    async def run() -> BaseException | None:
        instance = await start_instance(**at(server))
        link = instance.parts.link

        async def meets_no_writer(commands: object) -> list[Any]:
            if ends:
                link._failed(link._connections, TimeoutError())
            raise AttributeError("'NoneType' object has no attribute 'writelines'")

        execute, link._connections.execute = link._connections.execute, meets_no_writer
        broken = link._connections
        failure: BaseException | None
        [failure] = await asyncio.gather(link.execute([("PING",)]), return_exceptions=True)
        broken.execute = execute
        await instance.plugin.stop()
        return failure

    assert isinstance(asyncio.run(run()), ServiceUnavailable if ends else AttributeError)
