"""The arbiter that several nodes of one process share."""

from __future__ import annotations

from typing import Any

import pytest

from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.memory.cluster_arbiter import MemoryClusterArbiter
from kinmqtt_spi.services.cluster_arbiter import MAX_TERM, ClusterArbiter
from kinmqtt_spi.testing import faults as faults_module
from kinmqtt_spi.testing.cluster_arbiter import LAST_SIDE, THAT, THIS
from kinmqtt_spi.testing.faults import Faults

faulty: Any = faults_module.faulty
"""Untyped, because mypy takes no abstract class for its interface."""


def test_a_lost_answer_may_have_decided() -> None:
    """Behind faults a node is told that the store can't say; its side may have the term, and finds out by asking."""
    arbiter, faults = MemoryClusterArbiter(), Faults()
    view = faulty(arbiter, ClusterArbiter, faults)
    faults.fail()
    faults.fail(done=True)

    terms = []
    for _ in range(2):
        with pytest.raises(ServiceUnavailable):
            view.decide(1, THIS)
        terms.append(arbiter.term())

    assert terms == [0, 1]
    assert [arbiter.decide(1, THAT), view.decide(1, THIS)] == [False, True]


@pytest.mark.parametrize("term", [0, -1, MAX_TERM + 1])
def test_an_impossible_term_is_named(term: int) -> None:
    """The error says what was given, and what may be."""
    with pytest.raises(ValueError, match=f"a term must be from 1 to 9007199254740991, not {term}"):
        MemoryClusterArbiter().decide(term, THIS)


@pytest.mark.parametrize("side", [-1, LAST_SIDE + 1])
def test_an_impossible_side_is_named(side: int) -> None:
    """The error says what was given, and what may be."""
    with pytest.raises(ValueError, match=f"a side must be a number of 64 bits, not {side}"):
        MemoryClusterArbiter().decide(1, side)
