"""The reference subscription index keeps its contract."""

from __future__ import annotations

import pytest

from kinmqtt_spi.memory.subscription import NaiveIndex
from kinmqtt_spi.testing.subscription import SubscriptionIndexContract
from spi_harness.broken_subscription import SoundPlain


class TestNaiveIndex(SubscriptionIndexContract):
    """The index that tries every subscription."""

    @pytest.fixture
    def subscription_index(self) -> NaiveIndex:
        return NaiveIndex()


class TestSoundPlain(SoundPlain):
    """An index that refuses wildcards and groups."""
