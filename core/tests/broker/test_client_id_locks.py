"""One lock for each client id that is being worked on, and none for the others."""

from __future__ import annotations

from twisted.internet.defer import CancelledError, Deferred, succeed

from kinmqtt.broker.locks import ClientIdLocks
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


def test_very_many_that_wait_get_the_lock_one_after_the_other() -> None:
    """Who releases it at once passes it on without nested calls, which Python limits."""
    locks = ClientIdLocks()
    log: list[str] = []
    until = Deferred[None]()
    run(work(locks, "a", log, "first", until))
    names = [str(number) for number in range(5_000)]
    done = [run(work(locks, "a", log, name, succeed(None))) for name in names]

    until.callback(None)

    assert all(deferred.called for deferred in done)
    assert log == ["first", *names]
    assert "a" not in locks


def test_who_does_not_wait_any_more_gets_no_lock() -> None:
    """Its place goes to the next one."""
    locks = ClientIdLocks()
    first, second, third = (locks.acquire("a") for _ in range(3))
    cancelled: list[object] = []
    second.addErrback(lambda failure: cancelled.append(failure.type))

    second.cancel()
    locks.release("a")

    assert first.called
    assert third.called
    assert cancelled == [CancelledError]
    locks.release("a")
    assert "a" not in locks
