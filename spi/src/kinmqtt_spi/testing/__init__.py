"""The kit for plugin authors: contract suites, builders, faults, and a pytest plugin with fixtures.

Subclass the suite of a family and override one fixture; pytest then checks an implementation::

    from kinmqtt_spi.testing.session import SessionStoreContract

    class TestMyStore(SessionStoreContract):
        @pytest.fixture
        def session_store(self):
            return MyStore()

docs/testing.md lists the behaviours of each suite by number. The kit needs pytest and hypothesis:
 ``pip install "kinmqtt-spi[testing]"``.
"""

from __future__ import annotations

from typing import Final

import pytest

from kinmqtt_spi.services import FAMILIES

SUITES: Final = (*FAMILIES, "outbox", "plugin")
"""The modules that have suites."""

_PARTS: Final = ("cluster_arbiter", "cluster_base", "cluster_batches", "cluster_pairs")
"""The modules that suites are made of, and those of a family's further suites."""

# Assertions of an installed package are rewritten only where this is said before it is imported.
pytest.register_assert_rewrite(*(f"{__name__}.{module}" for module in (*SUITES, *_PARTS, "contract", "hooks")))
