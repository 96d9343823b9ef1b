"""``kinmqtt bridge import`` makes settings of Mosquitto's bridges, and tells of everything that is not in them."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinmqtt_bridge_mqtt import BridgeMqttSettings
from kinmqtt_bridge_mqtt.command import BridgeCommandError, command
from kinmqtt_bridge_mqtt.importing import _HANDLERS, _NO_COUNTERPART, Import
from kinmqtt_bridge_mqtt.mosquitto_conf import directives, read
from kinmqtt_spi.settings import Document, parse
from spi_harness.examples import examples

CONF = """\
# a Mosquitto with two bridges
listener 1883
connection Cloud
address a.example b.example:8883
topic sensors/# out 1
topic cmd/# in 1 local/ dev7/
topic "" both 2 here/state there/state
bridge_protocol_version mqttv50
remote_clientid plant-1
remote_username ada
remote_password secret
restart_timeout 5 60
keepalive_interval 30
cleansession false
try_private false
bridge_insecure true
bridge_tls_version tlsv1.2
start_type lazy
notifications false
round_robin true

connection second
address 192.0.2.1:1884
topic # in
topic a/#/b out
colour blue
"""


def made(text: str) -> Import:
    """What is made of a file's text."""
    return Import(directives(Path("mosquitto.conf"), text))


def parsed(toml: str) -> BridgeMqttSettings:
    """The settings, as the broker reads them."""
    return parse(BridgeMqttSettings, Document.parse(toml, "out.toml"), ("plugins", "bridge_mqtt"))


def test_connections_become_settings() -> None:
    """Two connections, with Mosquitto's defaults where ours are others."""
    found = made(CONF)

    settings = parsed(found.toml.replace('password_file = "cloud.password"\n', "")).connections
    assert list(settings) == ["cloud", "second"]
    cloud, second = settings.values()
    assert cloud.servers == ("a.example:1883", "b.example:8883")
    assert cloud.topics == ("sensors/# out 1", "cmd/# in 1 local/ dev7/", '"" both 2 here/state there/state')
    assert (cloud.version, cloud.client_id, cloud.username) == ("5", "plant-1", "ada")
    assert (cloud.sending.first_pause_s, cloud.sending.longest_pause_s) == (5, 60)
    assert (cloud.keep_alive_s, cloud.clean_start, cloud.bridge, cloud.round_robin) == (30, False, False, True)
    assert cloud.tls is not None
    assert not cloud.tls.verify_hostname
    assert (cloud.notifications, second.notifications) == (False, True)
    assert (second.version, second.bridge) == ("3.1.1", True)


def test_what_has_no_counterpart_is_told_with_its_line() -> None:
    """One line each, and none shows the password."""
    notes = made(CONF).notes

    assert [note.split(": ")[:2] for note in notes] == [
        ["mosquitto.conf:2", "listener"],
        ["mosquitto.conf:3", "connection"],
        ["mosquitto.conf:7", "topic"],
        ["mosquitto.conf:11", "remote_password"],
        ["mosquitto.conf:12", "restart_timeout"],
        ["mosquitto.conf:17", "bridge_tls_version"],
        ["mosquitto.conf:18", "start_type"],
        ["mosquitto.conf:25", "topic"],
        ["mosquitto.conf:26", "colour"],
    ]
    assert "secret" not in "".join(notes) + made(CONF).toml


@pytest.mark.parametrize("order", [1, -1])
def test_notifications_only_here_are_off_there(order: int) -> None:
    """In whatever order the two directives stand."""
    lines = ["notifications true", "notifications_local_only true"][::order]
    [connection] = parsed(
        made("\n".join(["connection c", "address a.example", "topic # out", *lines])).toml
    ).connections.values()
    assert connection.notifications is False


def test_a_folder_of_included_files_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """Or its bridges would be left out without a word."""
    (tmp_path / "m.conf").write_text(f"connection c\ninclude_dir {tmp_path}/conf.d\n")
    with pytest.raises(ValueError, match=r"m\.conf:2: include_dir: there is no folder '.*conf\.d'"):
        read(tmp_path / "m.conf")


def test_included_files_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of include_dir whose names end with .conf; notes name them."""
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "bridge.conf").write_text("connection one\naddress h\ntopic # out\nthreshold 5\n")
    (tmp_path / "m.conf").write_text(f"include_dir {tmp_path}/conf.d\n")
    parser = ArgumentParser()
    command.add_arguments(parser)

    assert (
        command.run(parser.parse_args(["import", str(tmp_path / "m.conf"), "--out", str(tmp_path / "o.toml")])) == 0
    )

    assert list(parsed((tmp_path / "o.toml").read_text()).connections) == ["one"]
    [note] = capsys.readouterr().err.splitlines()
    assert note.startswith(f"{tmp_path}/conf.d/bridge.conf:4: threshold: ")


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    """The command never writes over settings; nor does it write some for no bridge."""
    (tmp_path / "m.conf").write_text("connection one\naddress h\ntopic # out\n")
    (tmp_path / "none.conf").write_text("listener 1883\n")
    (tmp_path / "o.toml").write_text("[broker]\n")
    parser = ArgumentParser()
    command.add_arguments(parser)

    for name, problem in (
        ("m.conf", "can't be written"),
        ("none.conf", "has no connection"),
        ("no", "can't be read"),
    ):
        arguments = parser.parse_args(["import", str(tmp_path / name), "--out", str(tmp_path / "o.toml")])
        with pytest.raises(BridgeCommandError, match=problem):
            command.run(arguments)

    assert (tmp_path / "o.toml").read_text() == "[broker]\n"


WORDS = st.sampled_from([*_HANDLERS, *_NO_COUNTERPART, "connection", "listener", "colour"])
VALUES = st.sampled_from(
    ["true", "false", "5", "a b", "# out 1", "x in 2 l/ r/", "h:1", 'say "x"\\', "\x7f", "mqttv50"]
)
LINES = st.lists(st.tuples(WORDS, VALUES | st.text(st.characters(codec="utf-8"), max_size=20)), max_size=20)


@given(LINES)
@settings(max_examples=examples(200), deadline=None)
def test_whatever_stands_there_is_used_or_told(lines: list[tuple[str, str]]) -> None:
    """No file makes it fail; its settings can be read, and each line is in them or in a note."""
    text = "connection first\naddress h\ntopic # out\n" + "".join(f"{name} {value}\n" for name, value in lines)

    found = made(text)

    document = Document.parse(found.toml, "out.toml")
    assert document is not None
    told = {int(note.split(":")[1]) for note in found.notes}
    unmapped = {
        each.number for each in directives(Path("m"), text) if each.name in (*_NO_COUNTERPART, "listener", "colour")
    }
    assert unmapped <= told


def test_each_connection_has_a_password_of_its_own() -> None:
    """One broker must not be sent the password of the other."""
    found = made("connection a\naddress a\npassword x\nconnection b\naddress b\npassword y\n")

    assert 'password_file = "a.password"' in found.toml
    assert 'password_file = "b.password"' in found.toml


@pytest.mark.parametrize("directive", ["bridge_tls_use_os_certs true", "bridge_capath /etc/ssl/certs"])
def test_what_was_encrypted_stays_so(directive: str) -> None:
    """Also where the file names no authority."""
    assert "tls = {  }" in made(f"connection a\naddress a\ntopic # out\n{directive}\n").toml
