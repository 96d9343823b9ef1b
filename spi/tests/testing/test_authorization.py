"""The reference authorizer keeps its contract."""

from __future__ import annotations

import pytest

from kinmqtt_spi.memory.authorization import Rule, StaticRules
from kinmqtt_spi.services.authorization import Action
from kinmqtt_spi.testing.authorization import AuthorizationCase, AuthorizerContract
from kinmqtt_spi.testing.build import authorization, client
from kinmqtt_spi.values import Verdict
from spi_harness.broken_authorization import SoundRules

ALICE, BOB = client("alice", "alice"), client("bob", "bob")
WRITING = (Action.PUBLISH, Action.WILL)


class TestStaticRules(AuthorizerContract):
    """Rules from a list."""

    receives = True

    @pytest.fixture
    def authorization(self) -> AuthorizationCase:
        rules = [
            Rule(Verdict.DENY, "secret/#"),
            Rule(Verdict.ALLOW, "users/%u/#"),
            Rule(Verdict.DENY, "users/#"),
            Rule(Verdict.DENY, "notices/#", WRITING),
            Rule(Verdict.ALLOW, "notices/#"),
        ]
        return AuthorizationCase(
            StaticRules(rules),
            allowed=[
                *(authorization(action, "users/alice/x", ALICE) for action in Action),
                authorization(Action.SUBSCRIBE, "notices/x", ALICE),
                authorization(Action.RECEIVE, "notices/x", ALICE),
            ],
            denied=[
                *(authorization(action, "secret/x", ALICE) for action in Action),
                authorization(Action.SUBSCRIBE, "users/bob/+", ALICE),
                authorization(Action.PUBLISH, "notices/x", ALICE),
                *(authorization(action, "users/alice/x", client("alice", "bob")) for action in Action),
                *(authorization(action, "users/alice/x", BOB) for action in Action),
            ],
            foreign=[authorization(action, "open/x", ALICE) for action in Action],
        )


class TestSoundRules(SoundRules):
    """With rules that change and fail: what the doubles are made from."""
