"""Rules from a list."""

from __future__ import annotations

import pytest

from kinmqtt_spi.memory.authorization import Rule, StaticRules
from kinmqtt_spi.services.authorization import Action, AuthorizationRequest
from kinmqtt_spi.values import ABSTAIN, Client, Verdict

ANN = Client("ann-1", "ann")


def verdict(rules: list[Rule], action: Action, topic: str, client: Client = ANN) -> Verdict:
    request = AuthorizationRequest(client, action, topic)
    plugin = StaticRules(rules)
    decide = plugin.authorize_receive if action is Action.RECEIVE else plugin.authorize
    return decide(request).verdict


def test_the_first_rule_that_fits_decides() -> None:
    """Rules are read from the top; where none fits, other plugins decide."""
    rules = [
        Rule(Verdict.DENY, "a/secret", [Action.PUBLISH]),
        Rule(Verdict.ALLOW, "a/#", [Action.PUBLISH, Action.RECEIVE]),
        Rule(Verdict.DENY, "#", username="bob"),
    ]

    assert verdict(rules, Action.PUBLISH, "a/secret") is Verdict.DENY
    assert verdict(rules, Action.PUBLISH, "a/b") is Verdict.ALLOW
    assert verdict(rules, Action.RECEIVE, "a/secret") is Verdict.ALLOW
    assert verdict(rules, Action.WILL, "a/b") is Verdict.ABSTAIN
    assert verdict(rules, Action.WILL, "a/b", Client("b", "bob")) is Verdict.DENY
    assert StaticRules([]).authorize(AuthorizationRequest(ANN, Action.PUBLISH, "a")) is ABSTAIN


def test_names_stand_in_for_placeholders() -> None:
    """``%u`` and ``%c`` give each client topics of its own, also where a name looks like a placeholder."""
    rules = [Rule(Verdict.ALLOW, "users/%u/%c/#")]

    assert verdict(rules, Action.PUBLISH, "users/ann/ann-1/x") is Verdict.ALLOW
    assert verdict(rules, Action.PUBLISH, "users/bob/ann-1/x") is Verdict.ABSTAIN
    assert verdict(rules, Action.PUBLISH, "users/%c/me/x", Client("me", "%c")) is Verdict.ALLOW
    assert verdict(rules, Action.PUBLISH, "users/me/me/x", Client("me", "%c")) is Verdict.ABSTAIN


@pytest.mark.parametrize("name", ["+", "#", "bob/+", "a/b", "", None])
def test_a_name_can_not_reach_for_other_topics(name: str | None) -> None:
    """A client that calls itself ``+`` does not get everybody's topics."""
    rules = [Rule(Verdict.ALLOW, "users/%u/x")]

    assert verdict(rules, Action.SUBSCRIBE, "users/bob/x", Client("c", name)) is Verdict.ABSTAIN
    assert verdict(rules, Action.SUBSCRIBE, f"users/{name}/x", Client("c", name)) is Verdict.ABSTAIN


def test_a_subscription_may_not_reach_beyond_a_rule() -> None:
    """ALLOW must cover the whole filter, and a DENY that shares one topic with it is enough."""
    rules = [Rule(Verdict.DENY, "secret/#"), Rule(Verdict.ALLOW, "+/#"), Rule(Verdict.ALLOW, "secret/+")]

    assert verdict(rules, Action.SUBSCRIBE, "a/+") is Verdict.ALLOW
    assert verdict(rules, Action.SUBSCRIBE, "+/a") is Verdict.DENY
    assert verdict(rules, Action.SUBSCRIBE, "#") is Verdict.DENY
    assert verdict(rules[1:], Action.SUBSCRIBE, "$SYS/a") is Verdict.ABSTAIN


def test_a_rule_decides() -> None:
    """A rule that abstains is a mistake."""
    with pytest.raises(ValueError, match="allows or denies"):
        Rule(Verdict.ABSTAIN, "a")


@pytest.mark.parametrize("filter", ["%c/#", "%u/#", "%u%c/x"])
def test_a_name_opens_no_topic_of_the_broker_s(filter: str) -> None:
    """Who is called $SYS gains nothing by a rule that begins with its name; what denies holds all the same."""
    client = Client("$SYS", "$SYS")
    topic = "$SYS$SYS/x" if filter.startswith("%u%c") else "$SYS/x"
    request = AuthorizationRequest(client, Action.RECEIVE, topic)

    assert not Rule(Verdict.ALLOW, filter).fits(request)
    assert Rule(Verdict.DENY, filter).fits(request)
    assert Rule(Verdict.ALLOW, "$SYS/%c").fits(AuthorizationRequest(client, Action.RECEIVE, "$SYS/$SYS"))
