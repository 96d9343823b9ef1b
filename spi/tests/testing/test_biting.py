"""Every suite catches every double that breaks one of its promises, and says which."""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

import pytest

from kinmqtt_spi.testing.authentication import AuthenticatorContract
from kinmqtt_spi.testing.authorization import AuthorizerContract
from kinmqtt_spi.testing.bridge import SinkContract, SourceContract
from kinmqtt_spi.testing.cluster import ClusterBackendContract
from kinmqtt_spi.testing.cluster_arbiter import ClusterArbiterContract
from kinmqtt_spi.testing.event import EventLogContract
from kinmqtt_spi.testing.event_feed import EventFeedContract
from kinmqtt_spi.testing.limiter import LimiterContract
from kinmqtt_spi.testing.metric import MetricPluginContract, MetricsContract
from kinmqtt_spi.testing.outbox import OutboxContract
from kinmqtt_spi.testing.plugin import PluginContract
from kinmqtt_spi.testing.queue import QueueStoreContract
from kinmqtt_spi.testing.retain import RetainStoreContract
from kinmqtt_spi.testing.session import SessionStoreContract
from kinmqtt_spi.testing.subscription import SubscriptionIndexContract
from spi_harness import (
    broken_authentication,
    broken_authorization,
    broken_bridge,
    broken_cluster,
    broken_cluster_arbiter,
    broken_cluster_batches,
    broken_event,
    broken_event_feed,
    broken_limiter,
    broken_metric,
    broken_metric_plugin,
    broken_outbox,
    broken_plugin,
    broken_queue,
    broken_retain,
    broken_session,
    broken_source,
    broken_subscription,
)
from spi_harness.biting import Verdicts, biting_tests, run, unbroken

SUITES: dict[type[Any], tuple[ModuleType, ...]] = {
    SessionStoreContract: (broken_session,),
    ClusterBackendContract: (broken_cluster, broken_cluster_batches),
    ClusterArbiterContract: (broken_cluster_arbiter,),
    PluginContract: (broken_plugin,),
    MetricPluginContract: (broken_metric_plugin,),
    MetricsContract: (broken_metric,),
    LimiterContract: (broken_limiter,),
    AuthorizerContract: (broken_authorization,),
    AuthenticatorContract: (broken_authentication,),
    SubscriptionIndexContract: (broken_subscription,),
    QueueStoreContract: (broken_queue,),
    RetainStoreContract: (broken_retain,),
    EventLogContract: (broken_event,),
    EventFeedContract: (broken_event_feed,),
    SinkContract: (broken_bridge,),
    SourceContract: (broken_source,),
    OutboxContract: (broken_outbox,),
}

_verdicts = cache(run)


@pytest.mark.parametrize(("module", "double", "number"), biting_tests(SUITES))
def test_a_double_is_caught(module: ModuleType, double: str, number: str) -> None:
    """The test of the behaviour that a double breaks fails, and its text says the number."""
    verdicts: Verdicts = _verdicts(module)

    assert not verdicts.errors
    start = f"test_{number.lower().replace('-', '_')}_"
    [text] = [text for test, text in verdicts.failed[double].items() if test.startswith(start)] or [""]
    assert f"{number}: " in text


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.__name__)
def test_each_behaviour_has_a_double(suite: type[Any]) -> None:
    """No promise is without a double that breaks it."""
    assert unbroken(suite, SUITES[suite]) == set()
