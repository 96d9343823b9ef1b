"""Users from a dict."""

from __future__ import annotations

import hmac

import pytest

from kinmqtt_spi.memory.authentication import StaticUsers
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authentication import ConnectRequest
from kinmqtt_spi.values import ABSTAIN, ALLOW


@pytest.mark.parametrize("password", [b"wrong", b"", None, b"secret\0"])
def test_a_wrong_password_is_refused(password: bytes | None) -> None:
    """Nobody comes in under a known name without its password."""
    users = StaticUsers({"ann": b"secret"})

    decision = users.authenticate(ConnectRequest("c", "ann", password))

    assert (decision.allowed, decision.reason) == (False, ReasonCode.BAD_USER_NAME_OR_PASSWORD)


def test_the_right_password_is_let_in() -> None:
    """A user comes in with the password it has, an empty one included."""
    users = StaticUsers({"ann": b"secret", "bob": b""})

    decisions = [
        users.authenticate(ConnectRequest("c", "ann", b"secret")),
        users.authenticate(ConnectRequest("c", "bob", b"")),
    ]

    assert decisions == [ALLOW, ALLOW]


def test_a_missing_password_is_not_an_empty_one() -> None:
    """A CONNECT without a password does not open an account whose password is empty."""
    users = StaticUsers({"bob": b""})

    assert not users.authenticate(ConnectRequest("c", "bob", None)).allowed


def test_without_a_user_name_others_decide() -> None:
    """Anonymous clients are not this plugin's business."""
    assert StaticUsers({}).authenticate(ConnectRequest("c")) is ABSTAIN


def test_an_unknown_user_costs_what_a_known_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same work is done for every name, on values of the same length, and the same answer is given."""
    users = StaticUsers({"ann": b"secret"})
    lengths: list[tuple[int, int]] = []
    compare = hmac.compare_digest

    def watched(one: bytes, two: bytes) -> bool:
        lengths.append((len(one), len(two)))
        return compare(one, two)

    monkeypatch.setattr("hmac.compare_digest", watched)
    unknown = users.authenticate(ConnectRequest("c", "eve", b"a long guess at a password"))
    known = users.authenticate(ConnectRequest("c", "ann", b"x"))

    assert unknown == known
    assert lengths == [(32, 32)] * 2
