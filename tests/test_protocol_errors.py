"""The table of docs/errors.md leaves no mistake out, and each is answered as MQTT has it."""

from __future__ import annotations

import ast

import pytest

from kinmqtt.mqtt.packets import V5, V31
from kinmqtt.mqtt.reasons import DISCONNECT_FROM_SERVER
from kinmqtt_spi.reasons import ReasonCode
from root_harness.protocol_errors import ERRORS, FILES, SOURCES, UNREACHED, Site, closes, observed, sites, sites_in

each_site = pytest.mark.parametrize("site", sites(), ids=[f"{site.file}:{site.line}" for site in sites()])


def test_every_file_is_looked_at() -> None:
    """No other file of the core makes an error of the peer's."""
    makers = {
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ERRORS
    }

    assert makers - {"mqtt/errors.py"} == set(FILES)


@each_site
def test_every_place_is_reached_or_says_why_not(site: Site) -> None:
    """A mistake leads there, in the corpus or in a scenario; add one for a new `raise`."""
    reached = any(site.fits(each.text) for each in observed())

    assert reached != ((site.file, site.text) in UNREACHED), f"{site.file}:{site.line} {site.text}"


def test_what_is_not_reached_is_there() -> None:
    """The list has no place that is gone."""
    assert set(UNREACHED) <= {(site.file, site.text) for site in sites()}


@each_site
def test_the_clause_is_that_of_the_place(site: Site) -> None:
    """Where a clause is written down, it is the one that is told."""
    told = {each.clause for each in observed() if site.fits(each.text)}

    if told and site.clause is not None:
        assert site.clause in told


def test_every_rule_of_mqtt_has_a_clause() -> None:
    """A statement's number or a section; only bounds of our own have none."""
    without = {each.text for each in observed() if not each.clause}

    assert all("at most" in text or text.startswith(("more than", "the filter: ")) for text in without), without


def test_every_mistake_is_answered() -> None:
    """By a close, with the reason where the version can say it, or by a failure for one filter (section 4.13)."""
    for each in observed():
        kind, _, code = each.answer.partition(" ")
        assert kind in ("closed", "CONNACK", "DISCONNECT", "SUBACK", "UNSUBACK"), each
        if each.version < V5:
            assert kind == "closed" or each.answer in ("CONNACK 1", "CONNACK 2"), each
        elif kind == "DISCONNECT":
            reason = each.reason if each.reason in DISCONNECT_FROM_SERVER else ReasonCode.UNSPECIFIED_ERROR
            assert code == f"0x{reason:02X}", each
        elif kind != "closed":
            assert code == f"0x{each.reason:02X}", each


def test_nothing_is_said_to_whom_nobody_understands() -> None:
    """Before a CONNECT has named its version, and where it names another protocol [MQTT-3.1.2-1]."""
    untold = {each.clause for each in observed() if each.version == V5 and each.answer == "closed"}

    assert {"MQTT-3.1.0-1", "MQTT-3.1.2-1"} <= untold
    assert not untold & {"MQTT-3.1.2-2", "MQTT-3.1.2-3", "MQTT-3.1.0-2"}


def test_mqtt_3_1_has_rules_of_its_own() -> None:
    """The table has been written with clients of MQTT 3.1, too."""
    assert any(each.version == V31 and each.clause == "section 3.1 (3.1)" for each in observed())


def test_every_close_that_is_ours_has_a_reason() -> None:
    """Of the places that close or refuse, some name a code; the others are told it."""
    found = list(closes())

    assert {each.refuses for each in found if each.reason is not None} == {True, False}
    assert any(each.text == "nothing was heard for one and a half times the keep alive" for each in found)


def test_places_are_found() -> None:
    """In a text, in a variable, and in what is filled in."""
    source = """
def f(x):
    text = f"a {x} of {x:02X}"
    raise ProtocolError(text, "MQTT-1")

def g():
    return MalformedPacket("plain", CLAUSES[1])

def h(bad):
    raise RemoteError(ReasonCode.BANNED, "with a code")
"""

    assert [(site.text, site.clause) for site in sites_in("x.py", source)] == [
        ("a … of …", "MQTT-1"),
        ("plain", None),
        ("with a code", ""),
    ]
