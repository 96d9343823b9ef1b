"""The gate: a division of partitions waits for the batch in hand, and none begins meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from kinmqtt_kafka_kit import Gate, gate


def test_a_division_waits_for_the_batch_in_hand() -> None:
    """None begins before the partitions are assigned."""

    async def main() -> None:
        door = Gate()
        assert door.enter()
        revoking = asyncio.ensure_future(door.on_partitions_revoked(()))
        await asyncio.sleep(0)
        assert not revoking.done()
        assert not door.enter()
        door.leave()
        await revoking
        assert not door.enter()
        opened = asyncio.ensure_future(door.opened())
        await asyncio.sleep(0)
        assert not opened.done()
        await door.on_partitions_assigned(())
        await opened
        assert door.enter()

    asyncio.run(main())


def test_a_batch_goes_on_after_a_pause_unless_partitions_were_divided() -> None:
    """They may have gone to others, who get it again."""

    async def main() -> None:
        door = Gate()
        assert door.enter()
        door.leave()
        assert door.enter_again()
        door.leave()
        await door.on_partitions_revoked(())
        assert not door.enter_again()
        await door.on_partitions_assigned(())
        assert not door.enter_again()
        assert door.enter()

    asyncio.run(main())


def test_a_division_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that hangs keeps no group from going on."""
    monkeypatch.setattr(gate, "REVOKE_LIMIT_S", 0.01)

    async def main() -> None:
        door = Gate()
        assert door.enter()
        async with asyncio.timeout(5):
            await door.on_partitions_revoked(())

    asyncio.run(main())
