"""Rules as they are written: what is taken, and what is told of mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinmqtt_sentinel_limiter import Rules, SentinelSettings
from kinmqtt_sentinel_limiter._rules_file import read_rules
from kinmqtt_sentinel_limiter._settings import (
    DegradeSettings,
    FlowSettings,
    ParamSettings,
    SystemSettings,
    joined,
)
from kinmqtt_spi.errors import SettingsError
from kinmqtt_spi.services.limiter import ResourceKind
from kinmqtt_spi.settings import Document, parse

FILE = """
[[flow]]
name = "publish-per-client"
count = 100

[[flow]]
name = "slow start"
kind = "connect"
per = "all"
count = 50
behaviour = "warm_up"
warm_up_s = "1 min"
listener = ["main", "tls"]

[[degrade]]
name = "directory"
plugin = "ldap"
strategy = "slow_ratio"
slow_call_ms = 200
ratio = 0.5

[[system]]
name = "late"
metric = "lag"
threshold = 0.2
kinds = ["connect"]

[[param]]
name = "topics"
param = "topic"
count = 10
items = {"alarm/all" = 1000}
"""


def _refused(text: str) -> str:
    with pytest.raises(SettingsError) as error:
        parse(Rules, Document.parse(text, "limits.toml"), ())
    return str(error.value)


def test_a_file_has_all_tables(tmp_path: Path) -> None:
    """The same tables as in the settings section, without its name before them."""
    path = tmp_path / "limits.toml"
    path.write_text(FILE)

    assert read_rules(path) == Rules(
        flow=(
            FlowSettings(name="publish-per-client", count=100),
            FlowSettings(
                name="slow start",
                kind=ResourceKind.CONNECT,
                per="all",
                count=50,
                behaviour="warm_up",
                warm_up_s=60.0,
                listener=("main", "tls"),
            ),
        ),
        degrade=(
            DegradeSettings(name="directory", plugin="ldap", strategy="slow_ratio", slow_call_ms=200, ratio=0.5),
        ),
        system=(SystemSettings(name="late", metric="lag", threshold=0.2, kinds=(ResourceKind.CONNECT,)),),
        param=(ParamSettings(name="topics", param="topic", count=10, items={"alarm/all": 1000.0}),),
    )


def test_the_section_has_the_same_tables() -> None:
    """``[[plugins.sentinel_limiter.flow]]``, beside the section's own keys."""
    text = '[plugins.sentinel_limiter]\nrules = "limits.toml"\n'
    text += '[[plugins.sentinel_limiter.flow]]\nname = "a"\ncount = 1\n'

    settings = parse(SentinelSettings, Document.parse(text), ("plugins", "sentinel_limiter"))

    assert settings == SentinelSettings(rules=Path("limits.toml"), flow=(FlowSettings(name="a", count=1),))


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ("[[flow]]\nname='a'", "limits.toml:1: flow[0].count: required key is missing (a number not below 0.001)"),
        ("[[flow]]\nname=''\ncount=1", "limits.toml:2:6: flow[0].name: a rule needs a name that metrics and"),
        ("[[flow]]\nname='a'\ncount=0", "limits.toml:3:7: flow[0].count: expected a number not below 0.001, got 0"),
        ("[[flow]]\nname='a'\ncount=1\nper='cleint'", 'limits.toml:4:5: flow[0].per: expected one of "client"'),
        ("[[flow]]\nname='a'\ncount=1\nlimit=3", "limits.toml:4:1: flow[0].limit: unknown key"),
        (
            "[[flow]]\nname='a'\ncount=1\ntopic='a#'",
            "limits.toml:4:7: flow[0].topic: 'a#' is not a topic filter that a",
        ),
        ("[[flow]]\nname='a'\ncount=1\nkind='connect'\ntopic='a'", "flow[0]: only a rule for publish can use"),
        ("[[flow]]\nname='a'\ncount=1\nkind='connection'", "flow[0]: a connection only has a listener"),
        ("[[flow]]\nname='a'\ncount=1.5\ngrade='concurrency'", "flow[0]: the count of a concurrency rule must be"),
        ("[[flow]]\nname='a'\ncount=1\ngrade='concurrency'\nburst=3", "flow[0]: a concurrency rule only has"),
        (
            "[[flow]]\nname='a'\ncount=1\ngrade='concurrency'\nverdict='delay'",
            "flow[0]: a concurrency rule can't delay",
        ),
        ("[[degrade]]\nname='a'\nstrategy='error_count'", "degrade[0]: error_count needs count"),
        ("[[degrade]]\nname='a'\nstrategy='error_count'\ncount=1\nratio=0.5", "degrade[0]: error_count has no ratio"),
        ("[[system]]\nname='a'\nmetric='cpu'\nthreshold=80", "system[0]: cpu is a share, from 0 to 1"),
        (
            "[[system]]\nname='a'\nmetric='lag'\nthreshold=1\nkinds=[]",
            "system[0].kinds: a rule needs at least one kind",
        ),
        ("[[system]]\nname='a'\nmetric='publish_rate'\nthreshold=1\nadaptive=true", "system[0]: adaptive is for lag"),
        (
            "[[system]]\nname='a'\nmetric='publish_concurrency'\nthreshold=1.5",
            "system[0]: the threshold of publish_concurrency",
        ),
        (
            "[[system]]\nname='a'\nmetric='publish_concurrency'\nthreshold=1\nverdict='delay'",
            "system[0]: a concurrency rule can't delay",
        ),
        ("[[param]]\nname='a'\nparam='client'\ncount=1\nkind='connection'", "param[0]: a connection only has"),
        ("[flow]\nname='a'", "limits.toml:1:2: flow: expected a list, each element a table, got a table"),
    ],
)
def test_a_mistake_is_told_with_its_place(rule: str, problem: str) -> None:
    """File, line and key, and what is wrong."""
    assert problem in _refused(rule)


def test_names_are_unique_in_the_section() -> None:
    """Over all tables."""
    text = "[[flow]]\nname='a'\ncount=1\n[[param]]\nname='a'\nparam='client'\ncount=1"

    with pytest.raises(SettingsError, match='two rules are called "a"'):
        parse(SentinelSettings, Document.parse(text), ())


def test_names_are_unique_in_the_file(tmp_path: Path) -> None:
    """Over all tables, and beside those of the section; each is told with its place."""
    path = tmp_path / "limits.toml"
    path.write_text(
        "[[flow]]\nname='a'\ncount=1\n[[param]]\nname='a'\nparam='client'\ncount=1\n[[flow]]\nname='b'\ncount=1"
    )

    with pytest.raises(SettingsError) as error:
        read_rules(path, ["b"])

    assert error.value.problems == (
        f'{path}:9:6: flow[1].name: another rule is called "b"',
        f'{path}:5:6: param[0].name: another rule is called "a"',
    )


def test_rules_of_the_section_come_first() -> None:
    """The first that refuses speaks, so the order counts."""
    section = SentinelSettings(flow=(FlowSettings(name="a", count=1),))

    rules = joined(section, Rules(flow=(FlowSettings(name="b", count=1),)))

    assert [rule.name for rule in rules.all()] == ["a", "b"]
