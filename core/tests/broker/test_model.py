"""The broker beside its model: shortly in every run, and for an hour under a command of its own.

KINMQTT_SOAK_S=3600 python -m pytest -m soak core/tests/broker/test_model.py -s
"""

from __future__ import annotations

import os
import secrets
from itertools import count
from time import monotonic

import hypothesis.core
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from core_harness.model import BrokerModel
from spi_harness.examples import examples

BrokerModel.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
TestBrokerModel = BrokerModel.TestCase

EXAMPLES_AT_ONCE = 200
LONG = settings(max_examples=EXAMPLES_AT_ONCE, stateful_step_count=100, deadline=None, database=None)


@pytest.mark.soak
def test_the_model_holds_for_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random clients for as long as KINMQTT_SOAK_S says; the seed is told, and KINMQTT_SOAK_SEED takes it again."""
    until = monotonic() + float(os.environ.get("KINMQTT_SOAK_S", "3600"))
    first = int(os.environ.get("KINMQTT_SOAK_SEED", secrets.randbelow(1 << 32)))
    for seed in count(first):
        print(f"seed {seed}", flush=True)
        monkeypatch.setattr(hypothesis.core, "global_force_seed", seed)
        run_state_machine_as_test(BrokerModel, settings=LONG)
        if monotonic() > until:
            break
    print(f"{(seed - first + 1) * EXAMPLES_AT_ONCE} runs of up to 100 steps from seed {first} on, no disagreement")
