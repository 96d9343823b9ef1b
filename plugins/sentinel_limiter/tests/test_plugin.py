"""The plugin by itself: its life, reloads, the watched file, and what it tells."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from kinmqtt_sentinel_limiter import SentinelLimiter, SentinelSettings
from kinmqtt_sentinel_limiter._settings import DegradeSettings, FlowSettings, ParamSettings, SystemSettings
from kinmqtt_spi.errors import AssemblyError, NotConfigured, SettingsError
from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.services.limiter import LimiterNeeds, Resource, ResourceKind
from kinmqtt_spi.services.plugin import HealthState, Requirements

CONNECTION, CONNECT, PUBLISH, SUBSCRIBE = ResourceKind
CLIENT = Resource(PUBLISH, "main", "192.0.2.1", "c", "u")
RULE = '[[flow]]\nname = "file"\ncount = {count}\n'


class Scene:
    """A plugin that was configured and started."""

    def __init__(self, **settings: Any) -> None:
        self.context = BareContext("sentinel_limiter", SentinelSettings(**settings))
        self.clock = self.context.clock
        self.limiter = SentinelLimiter()
        self.limiter.configure(self.context)
        self.limiter.start(self.context)

    def passes(self, times: int = 20) -> int:
        """How many of so many publishes pass, in a new second."""
        self.clock.advance(3)
        return sum(self.limiter.acquire(CLIENT, 1) is None for _ in range(times))

    def reload(self, **settings: Any) -> Sequence[str]:
        """What a reload answers."""
        return _result(self.limiter.reload(SentinelSettings(**settings)))

    def texts(self) -> dict[str, str]:
        """The $SYS topics."""
        topics = self.limiter.sys_topics()
        return {topic.topic.removeprefix("$SYS/sentinel_limiter/"): topic.read() for topic in topics}


def _result(coroutine: Coroutine[Any, Any, Sequence[str]]) -> Sequence[str]:
    try:
        coroutine.send(None)
    except StopIteration as stop:
        answer: Sequence[str] = stop.value
        return answer
    raise AssertionError("a reload without a broker waits for nothing")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A rules file."""
    path = tmp_path / "limits.toml"
    path.write_text(RULE.format(count=3))
    return path


def _flow(name: str = "r", count: float = 5, **fields: Any) -> FlowSettings:
    return FlowSettings(name=name, count=count, **fields)


# Its life


def test_nothing_to_limit_means_to_abstain() -> None:
    """Without rules and a file they could come by, the plugin says that it is not configured."""
    with pytest.raises(NotConfigured, match="no rules and no rules file"):
        Scene()


def test_the_requirements_name_a_version() -> None:
    """The plugin says what it was written for, whichever SPI is installed."""
    assert SentinelLimiter().requirements() == Requirements(spi_version=2)
    assert SentinelLimiter().settings_class() is SentinelSettings


def test_a_broken_file_stops_the_start(path: Path) -> None:
    """At the start there are no old rules to go by."""
    path.write_text("[[flow]]\n")

    with pytest.raises(SettingsError, match=r"limits\.toml:1: flow\[0\]\.name: required key is missing"):
        Scene(rules=path)


def test_a_rule_that_settings_forbid_stops_the_start() -> None:
    """A rule for topics beside ``watch_topics = false`` would never act."""
    with pytest.raises(AssemblyError, match="topics are not watched"):
        Scene(flow=(_flow(topic="a/#"),), watch_topics=False)


# What it asks for


@pytest.mark.parametrize(
    ("settings", "needs"),
    [
        ({"flow": (_flow(),)}, LimiterNeeds(frozenset([PUBLISH]))),
        ({"flow": (_flow(topic="a"),)}, LimiterNeeds(frozenset([PUBLISH]), True)),
        ({"param": (ParamSettings(name="p", param="topic", count=1),)}, LimiterNeeds(frozenset([PUBLISH]), True)),
        (
            {"flow": (_flow(kind=CONNECT, grade="concurrency"), _flow("s", kind=SUBSCRIBE))},
            LimiterNeeds(frozenset([CONNECT, SUBSCRIBE]), False, frozenset([CONNECT])),
        ),
        (
            {"system": (SystemSettings(name="s", metric="cpu", threshold=1, kinds=(CONNECT,), adaptive=True),)},
            LimiterNeeds(frozenset([CONNECT, PUBLISH]), False, frozenset([PUBLISH])),
        ),
        ({"degrade": (DegradeSettings(name="d", strategy="error_count", count=1),)}, LimiterNeeds(frozenset())),
        (
            {"flow": (_flow(),), "watch_topics": True, "watch_concurrency": True},
            LimiterNeeds(frozenset([PUBLISH, SUBSCRIBE]), True, frozenset([PUBLISH, SUBSCRIBE])),
        ),
    ],
)
def test_it_asks_for_what_rules_look_at(settings: dict[str, Any], needs: LimiterNeeds) -> None:
    """And for no more, but what the settings want watched for later rules."""
    assert Scene(**settings).limiter.limiter_needs() == needs


def test_with_a_file_it_asks_for_what_may_come(path: Path) -> None:
    """All kinds, and when connections are gone; topics and the end of packets cost more, and are left to settings."""
    needs = Scene(rules=path).limiter.limiter_needs()

    assert needs == LimiterNeeds(frozenset(ResourceKind), False, frozenset([CONNECTION, CONNECT]))


# Reloads


def test_a_reload_takes_new_rules() -> None:
    """At once; what is the same goes on where it was."""
    scene = Scene(flow=(_flow(count=5),))
    first = scene.passes()

    answer = scene.reload(flow=(_flow(count=5), _flow("narrow", 2)))

    assert (first, answer) == (5, [])
    assert scene.limiter.acquire(CLIENT, 1) is not None
    assert scene.passes() == 2


def test_a_reload_takes_the_bound_for_keys() -> None:
    """Also for rules that did not change."""
    scene = Scene(flow=(_flow(),), max_keys=1000)
    for number in range(100):
        scene.limiter.acquire(Resource(PUBLISH, "main", "192.0.2.1", f"c{number}"), 1)

    answer = scene.reload(flow=(_flow(),), max_keys=50)

    assert answer == []
    assert len(scene.limiter._rules_in_force._rules["r"].table.cells) == 50  # type: ignore[attr-defined]


def test_a_reload_says_what_needs_a_restart() -> None:
    """Rules that can't be asked for, and settings that are only looked at in the beginning; health tells too."""
    scene = Scene(flow=(_flow(),))

    answer = scene.reload(flow=(_flow(), _flow("s", kind=SUBSCRIBE)), watch_topics=True)

    assert answer == [
        "watch_topics needs a restart",
        'rule "s" is not in force: no rule was about subscribe at the start',
    ]
    assert scene.limiter.health().state is HealthState.DEGRADED
    assert scene.passes() == 5


def test_a_reload_with_a_broken_file_changes_nothing(path: Path) -> None:
    """It raises, and the old rules hold."""
    scene = Scene(flow=(_flow(),), rules=path)
    path.write_text("[[flow]]\n")

    with pytest.raises(SettingsError, match="required key is missing"):
        scene.reload(flow=(_flow(count=9),), rules=path)

    assert scene.passes() == 3


def test_a_reload_reaches_guards() -> None:
    """A guard that was given without a rule gets its breaker."""
    scene = Scene(flow=(_flow(),))
    guard = scene.limiter.guard_calls("ldap", "authenticate")
    scene.reload(degrade=(DegradeSettings(name="d", strategy="error_count", count=0, min_request_amount=1),))

    guard.leave(0.1, RuntimeError())

    assert not guard.enter()
    assert scene.texts()["breakers_open"] == "1"
    assert scene.texts()["calls_refused"] == "1"
    assert scene.limiter.health().text.endswith("not closed: d for ldap.authenticate")


# The file


def test_a_changed_file_is_taken(path: Path) -> None:
    """Within ``watch_s``, and said in the log; the section's rules stay."""
    scene = Scene(flow=(_flow(count=10),), rules=path, watch_s=2.0)
    before = scene.passes()
    path.write_text(RULE.format(count=7) + '[[flow]]\nname = "more"\ncount = 8\n')
    scene.clock.advance(2)

    assert (before, scene.passes()) == (3, 7)
    assert scene.context.log.texts("info") == [f"loaded 2 rules from {path}"]
    assert scene.texts()["rules"] == "3"


def test_a_broken_file_leaves_the_old_rules(path: Path) -> None:
    """One line in the log, however long it stays broken; health is degraded until it is mended."""
    scene = Scene(rules=path, watch_s=1.0)
    path.write_text(RULE.format(count=-1))
    scene.clock.advance(10)

    assert scene.passes() == 3
    assert scene.context.log.texts("error") == [
        "the rules file is invalid, the old rules stay in force: "
        f"{path}:3:9: flow[0].count: expected a number not below 0.001, got -1"
    ]
    assert scene.limiter.health().state is HealthState.DEGRADED
    assert ":3:9: flow[0].count" in scene.limiter.health().text
    path.write_text(RULE.format(count=4) + "\n\n")
    scene.clock.advance(2)
    assert scene.limiter.health().state is HealthState.HEALTHY
    assert scene.passes() == 4


def test_a_file_with_rules_that_wait_is_taken_without_them(path: Path) -> None:
    """What needs a restart is said in the log, and the rest is in force."""
    scene = Scene(rules=path, watch_s=1.0)
    path.write_text(RULE.format(count=6) + '[[flow]]\nname = "t"\ncount = 1\nper = "topic"\n')

    scene.clock.advance(2)

    assert scene.passes() == 6
    assert scene.context.log.texts("warn") == [
        'rule "t" is not in force: topics are not watched (watch_topics); this needs a restart'
    ]


def test_a_file_that_is_not_watched_is_read_at_a_reload(path: Path) -> None:
    """With ``watch_s = 0`` nobody looks."""
    scene = Scene(rules=path, watch_s=0.0)
    path.write_text(RULE.format(count=6))
    before = scene.passes()

    scene.reload(rules=path, watch_s=0.0)

    assert (before, scene.passes()) == (3, 6)


def test_a_file_keeps_the_state_of_its_rules(path: Path) -> None:
    """A rule that is the same in the new file goes on where it was."""
    scene = Scene(rules=path, watch_s=1.0)
    path.write_text(RULE.format(count=3) + '[[flow]]\nname = "other"\nclient = "x"\ncount = 1\n')
    scene.limiter.acquire(CLIENT, 1000)

    scene.clock.advance(2)

    assert scene.context.log.texts("info") == [f"loaded 2 rules from {path}"]
    assert scene.passes() == 0


# What it tells


def test_topics_and_health_tell_what_was_done() -> None:
    """Each number has a topic below $SYS/sentinel_limiter."""
    scene = Scene(flow=(_flow(count=2), _flow("trial", 1, shadow=True)))

    scene.passes(5)

    assert scene.texts() == {
        "rules": "2",
        "passed": "2",
        "blocked": "3",
        "shadow_blocked": "1",
        "delayed": "0",
        "calls_refused": "0",
        "breakers_open": "0",
        "system_rules_shut": "0",
        "lag_ms": "0.0",
    }
    assert scene.limiter.health().text == "2 rules, 3 requests refused"


def test_idle_keys_go_with_the_timer() -> None:
    """The one timer forgets them."""
    scene = Scene(flow=(_flow(),))
    scene.passes()

    scene.clock.advance(30)

    assert scene.limiter._rules_in_force._rules["r"].table.cells == {}  # type: ignore[attr-defined]
    assert scene.clock.pending() == 1


def test_a_tick_that_fails_is_not_the_last() -> None:
    """The timer is set again, whatever a measure raises."""
    scene = Scene(system=(SystemSettings(name="s", metric="cpu", threshold=1),))
    scene.limiter._measures.take = None  # type: ignore[assignment]

    with pytest.raises(TypeError):
        scene.clock.advance(1)

    assert scene.clock.pending() == 1
