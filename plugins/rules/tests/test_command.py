"""The command finds mistakes, shows what a rule is compiled to, and tries it."""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path

import pytest

from kinmqtt_rules.command import RulesCommandError, command
from kinmqtt_spi.errors import SettingsError

SETTINGS = """
[plugins.rules.hot]
sql = '''SELECT payload.temp AS t, clientid FROM "sensors/+/temp" WHERE payload.temp > 30'''
actions = [{ republish = { topic = "alarms/${clientid}", qos = 1 } }, { sink = "kafka:readings", payload = "${t}" }]
[plugins.rules.seen]
sql = '''SELECT clientid FROM "$events/client/connected"'''
actions = [{ republish = { topic = "seen/${clientid}", payload = "yes", retain = true } }]
"""


@pytest.fixture
def settings(tmp_path: Path) -> str:
    """A file with rules."""
    (tmp_path / "kinmqtt.toml").write_text(SETTINGS)
    return str(tmp_path / "kinmqtt.toml")


def run(*arguments: str) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args(arguments))


def test_check_lists_the_rules(settings: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With what they select from."""
    assert run("check", "-c", settings) == 0

    assert capsys.readouterr().out.splitlines() == [
        "hot: sensors/+/temp",
        "seen: $events/client/connected",
        "the rules are valid",
    ]


def test_check_reports_all_mistakes(tmp_path: Path) -> None:
    """With their places in the file and in the SQL."""
    path = tmp_path / "kinmqtt.toml"
    path.write_text(SETTINGS.replace("payload.temp > 30", "temp > 30").replace("SELECT clientid", "SELECT clintid"))

    with pytest.raises(SettingsError) as caught:
        run("check", "-c", str(path))

    first, second = caught.value.problems
    assert first.startswith(f"{path}:3:7: plugins.rules.hot.sql: 1:64: unknown field 'temp'")
    assert second.startswith(f"{path}:6:7: plugins.rules.seen.sql: 1:8: unknown field 'clintid'")


def test_show_prints_the_function(settings: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As it is run."""
    assert run("show", "hot", "-c", settings) == 0

    assert capsys.readouterr().out == (
        "def rule(s):\n"
        "    payload = document(s)\n"
        "    v1 = (payload.get('temp') if kind(payload) is map else None)\n"
        "    if (v1 > 30 if kind(v1) in number_types else f_gt(v1, 30)) is not True:\n"
        "        return None\n"
        "    row = {'t': v1, 'clientid': field_clientid(s)}\n"
        "    return (row,)\n"
    )


def test_test_prints_rows_and_what_becomes_of_them(settings: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is published."""
    assert (
        run("test", "hot", "-c", settings, "--topic", "sensors/a/temp", "--payload", '{"temp": 31}', "--client", "c1")
        == 0
    )

    assert capsys.readouterr().out.splitlines() == [
        '{"t":31,"clientid":"c1"}',
        '  publishes with QoS 1: alarms/c1 "{\\"t\\":31,\\"clientid\\":\\"c1\\"}"',
        '  to kafka:readings: sensors/a/temp "31"',
    ]


def test_test_says_why_there_is_no_row(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The payload may come from standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"x": "1"}')))
    sql = 'SELECT clientid FROM "t/#" WHERE payload.x > 1'

    assert run("test", "--sql", sql, "--topic", "t/1") == 1
    assert run("test", "--sql", sql, "--topic", "u", "--payload", "") == 1

    shown = capsys.readouterr()
    assert shown.out.splitlines() == ["no row: WHERE is not true", "sql is not about 'u': it selects from t/#"]
    assert shown.err == "1 arguments had a wrong type, and made NULL\n"


def test_test_takes_an_event(settings: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Under its new and its old name, with the fields that are typed; it has no payload that would be read."""
    assert run("test", "seen", "-c", settings, "--topic", "$events/client/connected", "--client", "c1") == 0
    assert run("test", "seen", "-c", settings, "--topic", "$events/client/disconnected") == 1
    topic, fields = "$events/client_disconnected", '{"by": "client"}'
    sql = f'SELECT clientid, username, "by", reason, disconnected_at = timestamp AS now FROM "{topic}"'
    assert run("test", "--sql", sql, "--topic", topic, "--user", "u", "--fields", fields) == 0

    assert capsys.readouterr().out.splitlines() == [
        '{"clientid":"c1"}',
        '  publishes with QoS 0, retained: seen/c1 "yes"',
        "seen is not about '$events/client/disconnected': it selects from $events/client/connected",
        '{"clientid":"tester","username":"u","by":"client","reason":null,"now":true}',
    ]


def test_test_takes_an_event_of_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    """Which has the fields of the message, too."""
    sql = 'SELECT topic, payload.x AS x, from_clientid AS from_id, reason FROM "$events/message/dropped"'
    fields = '{"topic": "a/b", "from_clientid": "c2"}'

    assert (
        run("test", "--sql", sql, "--topic", "$events/message/dropped", "--payload", '{"x": 1}', "--fields", fields)
        == 0
    )

    assert capsys.readouterr().out == '{"topic":"a/b","x":1,"from_id":"c2","reason":null}\n'


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["--fields", '{"clintid": 1}'],
            "has no field 'clintid'; did you mean 'clientid'\\?; there are: ",
        ),
        (["--fields", "[]"], "--fields is no JSON object"),
        (["--payload", "x"], "has no payload: type its fields with --fields"),
        (["--topic", "t", "--fields", "{}"], "--fields is for events, and 't' is a topic of messages"),
    ],
)
def test_mistakes_in_typed_events_are_told(arguments: list[str], expected: str) -> None:
    """Each with what to write instead."""
    sql = 'SELECT clientid FROM "t", "$events/client/connected"'

    with pytest.raises(RulesCommandError, match=expected):
        run("test", "--sql", sql, "--topic", "$events/client/connected", *arguments)


def test_test_shows_an_action_that_fails(settings: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With its reason."""
    assert (
        run(
            "test", "hot", "-c", settings, "--topic", "sensors/a/temp", "--payload", '{"temp": 31}', "--client", "a/b"
        )
        == 0
    )

    assert "  fails: ${clientid} makes no topic: it has more than one level" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["show"], "name the settings with -c FILE, or write a rule with --sql"),
        (["show", "--sql", 'SELECT x FROM "t"'], "sql: 1:8: unknown field 'x'"),
    ],
)
def test_mistakes_are_told_in_a_line(arguments: list[str], expected: str) -> None:
    """Without a traceback."""
    with pytest.raises(RulesCommandError, match=expected):
        run(*arguments)


def test_an_unknown_rule_is_told_with_those_that_are_there(settings: str) -> None:
    """And with the nearest one."""
    with pytest.raises(RulesCommandError, match="no rule 'hut'; did you mean 'hot'\\?; there are: hot, seen"):
        run("show", "hut", "-c", settings)
    with pytest.raises(RulesCommandError, match="name a rule; there are: hot, seen"):
        run("show", "-c", settings)
