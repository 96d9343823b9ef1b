"""Limits that the pipeline learned, in a real limiter: what it takes, counts, and refuses once told to."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from core_harness.brokers import running_broker
from kinmqtt_metrics.command import main
from kinmqtt_metrics.learning import Learned, Options, Usual, rules_for, text_of
from kinmqtt_sentinel_limiter._rules_file import read_rules
from kinmqtt_spi import ReasonCode
from root_harness.smallclient import SmallClient
from spi_harness.processes import wait_until

NOBODY, QUOTA = ReasonCode.NO_MATCHING_SUBSCRIBERS, ReasonCode.QUOTA_EXCEEDED


def rules_of(clients: dict[str, float], topics: dict[str, float], options: Options) -> str:
    """A file as the job writes it."""
    rules = [
        rule
        for kind, rates in (("client", clients), ("topic", topics))
        for rule in rules_for(kind, [Usual(name, rate, rate, 50) for name, rate in rates.items()], 0.01, options)  # type: ignore[arg-type]
    ]
    seen = {"client": len(clients), "topic": len(topics)}
    unknown = {"client": 0, "topic": 0}
    return text_of(Learned(tuple(rules), 0.0, 600.0, 10, ("n1",), seen, unknown, {}), options, "tables", 0.0)  # type: ignore[arg-type]


@given(
    st.dictionaries(st.text(min_size=1, max_size=200), st.floats(0.001, 1e6), max_size=10),
    st.dictionaries(st.text(min_size=1, max_size=200), st.floats(0.001, 1e6), max_size=10),
)
def test_the_limiter_takes_every_file(
    tmp_path_factory: object, clients: dict[str, float], topics: dict[str, float]
) -> None:
    """Whatever clients and topics are called: its own parser finds no mistake, and all is in the shadow."""
    path = tmp_path_factory.getbasetemp() / "learned.toml"  # type: ignore[attr-defined]
    path.write_text(rules_of(clients, topics, Options(least=0.001)), encoding="utf-8")

    rules = read_rules(path)

    assert len(rules.param) == 2
    assert all(rule.shadow for rule in (*rules.flow, *rules.param))
    assert {rule.client for rule in rules.flow if rule.client} <= {(name,) for name in clients}


def test_a_rule_counts_in_the_shadow_and_refuses_once_it_is_on(tmp_path: Path) -> None:
    """Who exceeds the usual rate is let through and counted; --enable alone changes that, while the broker runs.

    The rule for all others limits those that have none of their own, and nobody else.
    """
    options = Options(least=0.001, over_s=1, factor=1.0)
    # A burst of four, then one each quarter of a thousand seconds: no clock matters here.
    text = rules_of({"loud": 4.0}, {}, options).replace("count = 4\n", "count = 0.004\n")
    (tmp_path / "limits.toml").write_text(text, encoding="utf-8")
    settings = tmp_path / "kinmqtt.toml"
    settings.write_text(
        '[broker]\nsys_interval_s = 1\n[plugins.sentinel_limiter]\nrules = "limits.toml"\nwatch_s = 0.05\n',
        encoding="utf-8",
    )
    blocked = "$SYS/sentinel_limiter/shadow_blocked"

    with running_broker("-c", str(settings), cwd=tmp_path) as broker:
        with SmallClient(broker.port, "loud") as client, SmallClient(broker.port, "watcher") as watcher:
            watcher.subscribe(blocked)
            shadowed = [client.publish("a", b"x") for _ in range(10)]
            wait_until(
                lambda: any(topic == blocked and int(n) >= 6 for topic, n in watcher.received()), "six counted"
            )
            status = main(["rules", "--enable", str(tmp_path / "limits.toml")])
            broker.wait_for_line("loaded 3 rules from limits.toml")
            limited = [client.publish(f"{n}", b"x") for n in range(10)]
            other = [watcher.publish(f"other/{n}", b"x") for n in range(3)]

    assert status == 0
    assert shadowed == [NOBODY] * 10
    assert limited == [NOBODY] * 4 + [QUOTA] * 6
    assert other == [NOBODY, QUOTA, QUOTA]
