"""One lock for each client id that is being worked on, and none for the others."""

from __future__ import annotations

from twisted.internet.defer import Deferred

from kinmqtt.broker.ownership.locks import ClientIdLocks
from kinmqtt.hooks.awaitables import run


async def work(locks: ClientIdLocks, client_id: str, log: list[str], name: str, until: Deferred[None]) -> None:
    """Hold the lock of a client id until a Deferred fires; notes when that begins."""
    async with locks.of(client_id):
        log.append(name)
        await until


def test_a_lock_is_held_by_one_after_the_other() -> None:
    """First come, first served; other client ids do not wait. A lock goes when nobody holds or awaits it."""
    locks = ClientIdLocks()
    log: list[str] = []
    first, second, other = Deferred[None](), Deferred[None](), Deferred[None]()
    done = [
        run(work(locks, "a", log, "first", first)),
        run(work(locks, "a", log, "second", second)),
        run(work(locks, "b", log, "other", other)),
    ]

    at_first = list(log)
    first.callback(None)
    meanwhile = (list(log), "a" in locks)
    second.callback(None)
    other.callback(None)

    assert at_first == ["first", "other"]
    assert meanwhile == (["first", "other", "second"], True)
    assert all(deferred.called for deferred in done)
    assert ("a" in locks, "b" in locks) == (False, False)


def test_a_failure_releases_the_lock() -> None:
    """The failure goes on to whoever holds the lock."""
    locks = ClientIdLocks()
    until = Deferred[None]()
    failed = run(work(locks, "a", [], "only", until))

    until.errback(ValueError("no"))

    failures: list[object] = []
    failed.addErrback(lambda failure: failures.append(failure.value))
    assert [str(error) for error in failures] == ["no"]
    assert "a" not in locks
