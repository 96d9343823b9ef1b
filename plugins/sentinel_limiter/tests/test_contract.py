"""The limiter keeps the contracts of limiters, of plugins with ``$SYS`` topics, and what any plugin promises."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from kinmqtt_sentinel_limiter import SentinelLimiter, SentinelSettings
from kinmqtt_sentinel_limiter._active_rules import MAX_PLANS
from kinmqtt_sentinel_limiter._settings import FlowSettings, ParamSettings, SystemSettings
from kinmqtt_spi.memory.plugin import BareContext, TurnableClock
from kinmqtt_spi.services.limiter import Resource, ResourceKind
from kinmqtt_spi.testing.limiter import LimiterCase, LimiterContract
from kinmqtt_spi.testing.metric import MetricPluginContract
from kinmqtt_spi.testing.plugin import PluginCase, PluginContract

CONNECTION, CONNECT, PUBLISH, SUBSCRIBE = ResourceKind
CLIENT = Resource(PUBLISH, "tcp:1883", "192.0.2.1", "client", "user")
FREE = Resource(SUBSCRIBE, "tcp:1883", "192.0.2.1", "client", "user")
KEYS = 1000


def started(clock: TurnableClock, **settings: Any) -> SentinelLimiter:
    """The plugin with these settings."""
    context = BareContext("sentinel_limiter", SentinelSettings(**settings), clock=clock)
    limiter = SentinelLimiter()
    limiter.configure(context)
    limiter.start(context)
    return limiter


class Reloaded(LimiterContract):
    """A rule that stays as it is keeps its state when the settings are read again."""

    reloads = keeps_use = True

    def reload(self, case: LimiterCase, drive: Any) -> None:
        """Take the same settings again."""
        plugin: SentinelLimiter = case.plugin
        assert drive(plugin.reload(plugin._settings_now)) == []


# Rates


class TestRate(Reloaded):
    """So many in each second, for each client."""

    bounded = True
    bound = KEYS + MAX_PLANS
    rule = FlowSettings(name="r", count=5)
    passes = 5

    @pytest.fixture
    def limiter(self, clock: TurnableClock) -> LimiterCase:
        plugin = started(clock, flow=(self.rule,), max_keys=KEYS)
        return LimiterCase(plugin, CLIENT, self.passes, FREE, self.rule.count)

    def size(self, case: LimiterCase) -> int:
        """Whom the rule knows, and whose cells were looked for."""
        rule = case.plugin._rules_in_force._rules["r"]
        assert len(rule.table.cells) <= KEYS
        return len(rule.table.cells) + len(case.plugin._rules_in_force._plans)


class TestBucket(TestRate):
    """A token bucket for each client."""

    rule = FlowSettings(name="r", count=5, burst=8)
    passes = 8


class TestDelay(TestRate):
    """A bucket whose debts are waited for."""

    rule = FlowSettings(name="r", count=5, burst=3, verdict="delay")
    passes = 3


class TestPace(TestRate):
    """A leaky bucket: one after the other."""

    rule = FlowSettings(name="r", count=5, behaviour="pace")
    passes = 1


class TestConnectRate(TestRate):
    """So many CONNECT packets a second from one address."""

    rule = FlowSettings(name="r", count=2, kind=CONNECT, per="address")
    passes = 2

    @pytest.fixture
    def limiter(self, clock: TurnableClock) -> LimiterCase:
        plugin = started(clock, flow=(self.rule,), max_keys=KEYS)
        connect = evolve(CLIENT, kind=CONNECT)
        same, own = [evolve(connect, client_id="other")], [evolve(connect, address="192.0.2.10")]
        return LimiterCase(plugin, connect, self.passes, FREE, self.rule.count, same, own)


class TestPublishRateOfAll(Reloaded):
    """A system rule for all packets together."""

    per_client = False

    @pytest.fixture
    def limiter(self, clock: TurnableClock) -> LimiterCase:
        rule = SystemSettings(name="s", metric="publish_rate", threshold=7)
        return LimiterCase(started(clock, system=(rule,)), CLIENT, 7, FREE, 7.0)


# How much at once


class TestConcurrency(Reloaded):
    """So many packets of a client in hand."""

    limits_rate = False
    limits_concurrency = True

    @pytest.fixture
    def limiter(self, clock: TurnableClock) -> LimiterCase:
        rule = FlowSettings(name="r", count=4, grade="concurrency")
        return LimiterCase(started(clock, flow=(rule,)), CLIENT, 4, FREE)


class TestConnectedClients(TestConcurrency):
    """So many clients of a user, who leave it to the broker to name them."""

    @pytest.fixture
    def limiter(self, clock: TurnableClock) -> LimiterCase:
        rule = FlowSettings(name="r", count=4, grade="concurrency", kind=CONNECT, per="username")
        nameless = evolve(CLIENT, kind=CONNECT, client_id=None)
        same, own = [evolve(nameless, address="192.0.2.9")], [evolve(nameless, username="User")]
        return LimiterCase(started(clock, flow=(rule,)), nameless, 4, FREE, same_share=same, own_share=own)


class TestPublishesInHand(Reloaded):
    """A system rule for all packets in hand."""

    limits_rate = False
    limits_concurrency = True
    per_client = False

    @pytest.fixture
    def limiter(self, clock: TurnableClock) -> LimiterCase:
        rule = SystemSettings(name="s", metric="publish_concurrency", threshold=3)
        return LimiterCase(started(clock, system=(rule,)), CLIENT, 3, FREE)


# Hot parameters


class TestHotClients(Reloaded):
    """So many a second for each of the heaviest clients."""

    bounded = True
    bound = KEYS + MAX_PLANS
    resource = CLIENT
    param: Any = "client"

    @pytest.fixture
    def limiter(self, clock: TurnableClock) -> LimiterCase:
        rule = ParamSettings(name="r", param=self.param, count=5, max_values=KEYS, items={"other": 1})
        return LimiterCase(started(clock, param=(rule,)), self.resource, 5, FREE, 5.0)

    def size(self, case: LimiterCase) -> int:
        """The values that are remembered, and whose cells were looked for."""
        return len(case.plugin._rules_in_force._rules["r"].values) + len(case.plugin._rules_in_force._plans)


class TestHotTopics(TestHotClients):
    """So many a second for each topic, whoever publishes."""

    per_client = bounded = False
    resource = evolve(CLIENT, topic="a/b")
    param = "topic"


# Its life


SECTION = """
[[flow]]
name = "publishes"
count = {count}

[[flow]]
name = "clients"
kind = "connect"
grade = "concurrency"
per = "username"
count = 10

[[param]]
name = "hot"
param = "client"
count = 50

[[system]]
name = "late"
metric = "lag"
threshold = 0.2

[[system]]
name = "busy"
metric = "process_memory"
threshold = 1e15

[[degrade]]
name = "directory"
plugin = "ldap"
strategy = "error_count"
count = 3
"""


class TestSentinelLimiter(PluginContract):
    """Rules in the section and in a file."""

    reloads = refuses_settings = True

    @pytest.fixture
    def plugin(self, tmp_path_factory: pytest.TempPathFactory) -> PluginCase:
        folder = tmp_path_factory.mktemp("files")
        for name, count in (("one", "3"), ("other", "4"), ("broken", '"many"')):
            text = f'[[flow]]\nname = "file"\nkind = "subscribe"\ncount = {count}\n'
            (folder / name).write_text(text, encoding="utf-8")

        def section(count: int, file: str) -> str:
            return f'rules = "{folder / file}"\n{SECTION.format(count=count)}'

        changed = section(7, "other").replace('name = "late"', 'name = "later"')
        return PluginCase(SentinelLimiter, section(5, "one"), changed, section(7, "broken"), "sentinel_limiter")

    def probe(self, plugin: Any) -> object:
        """How many pass, and what it tells then."""
        passed = [sum(plugin.acquire(resource, 1) is None for _ in range(10)) for resource in (CLIENT, FREE)]
        plugin._context.clock.advance(5)
        topics = {each.topic: each.read() for each in plugin.sys_topics()}
        return passed, sorted(plugin._rules_in_force._rules), topics["$SYS/sentinel_limiter/rules"]


class TestItsTopics(MetricPluginContract):
    """What it publishes below ``$SYS/``."""

    samples = False

    @pytest.fixture
    def metric_plugin(self, clock: TurnableClock) -> SentinelLimiter:
        limiter = started(clock, flow=(FlowSettings(name="r", count=1),))
        for _ in range(3):
            limiter.acquire(CLIENT, 1)
        return limiter
