"""Makes this plugin's settings of Mosquitto's bridges, and tells of each directive that has no counterpart."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from kinmqtt_bridge_mqtt.mosquitto_conf import Directive
from kinmqtt_bridge_mqtt.settings import address
from kinmqtt_bridge_mqtt.topic_line import TopicLine

_LOCAL_ONLY: Final = "notifications_local_only"

PORT: Final = 1883
"""The port of an address that names none."""

_VERSIONS: Final = {"mqttv50": "5", "mqttv311": "3.1.1", "mqttv31": "3.1.1"}

_NO_COUNTERPART: Final[Mapping[str, str]] = {
    "bridge_attempt_unsubscribe": "it never unsubscribes from what goes out",
    "bridge_bind_address": "the system chooses the address",
    "bridge_identity": "there is no TLS with pre-shared keys",
    "bridge_max_packet_size": "in MQTT 5 the far broker says what it takes",
    "bridge_max_topic_alias": "it uses no topic aliases",
    "bridge_outgoing_retain": "messages keep their retained flag",
    "bridge_psk": "there is no TLS with pre-shared keys, and without tls the connection is NOT encrypted",
    "bridge_receive_maximum": "see max_inflight",
    "bridge_reload_type": "a reload changes the connections that have changed",
    "bridge_require_ocsp": "certificates are not checked with OCSP",
    "bridge_tcp_keepalive": "see keep_alive_s",
    "bridge_tcp_user_timeout": "see timeout_s",
    "bridge_tls_version": "TLS 1.2 and newer are used",
    "idle_timeout": "connections are always kept",
    "local_cleansession": "what waits is in the outbox, which is always kept",
    "local_clientid": "the plugin is no client of its own broker",
    "local_password": "the plugin is no client of its own broker",
    "local_username": "the plugin is no client of its own broker",
    "threshold": "connections are always kept",
}
"""Directives of bridges, and why they have none."""


class Import:
    """What is made of a file: :attr:`toml`, and :attr:`notes`, one line for each thing that was left out."""

    def __init__(self, directives: Iterable[Directive]) -> None:
        self.notes: list[str] = []
        self._sections: dict[str, dict[str, Any]] = {}
        self._places: dict[str, str] = {}
        self._section: dict[str, Any] | None = None
        for each in directives:
            self._take(each)
        for name, section in self._sections.items():
            if section.pop(_LOCAL_ONLY, False):
                section["notifications"] = False  # In whatever order they stand.
            if "password_file" in section:
                section["password_file"] = f"{name}.password"
            for key, directive in (("servers", "address"), ("topics", "topic")):
                if not section[key]:
                    self.notes.append(f"{self._places[name]}: connection {name} has no {directive}: add {key}")

    @property
    def names(self) -> list[str]:
        """The connections."""
        return list(self._sections)

    @property
    def toml(self) -> str:
        """The settings."""
        return "\n".join(
            f"[plugins.bridge_mqtt.connections.{name}]\n"
            + "".join(f"{key} = {_value(value)}\n" for key, value in section.items())
            for name, section in self._sections.items()
        )

    def _take(self, each: Directive) -> None:
        if each.name == "connection":
            self._begin(each)
            return
        if each.name == "include_dir":
            return  # Its files' directives come behind it.
        handler = _HANDLERS.get(each.name)
        if handler is None and each.name not in _NO_COUNTERPART:
            self._note(each, "it is no directive of bridges, and is left out; see docs/from-mosquitto.md")
        elif self._section is None:
            self._note(each, "it stands before the first connection, and is left out")
        elif handler is None:
            self._note(each, f"it has no counterpart: {_NO_COUNTERPART[each.name]}")
        elif not each.value and each.name != "notification_topic":
            self._note(each, "it has no value, and is left out")
        else:
            problem = handler(self._section, each.value)
            if problem is not None:
                self._note(each, problem)

    def _note(self, each: Directive, text: str) -> None:
        self.notes.append(f"{each.place}: {each.name}: {text}")

    def _begin(self, each: Directive) -> None:
        plain = re.sub(r"[^a-z0-9_-]", "_", each.value.lower())[:60] or "bridge"
        name, number = plain, 1
        while name in self._sections:
            number += 1
            name = f"{plain}-{number}"
        if name != each.value:
            self._note(each, f"{each.value!r} can't be a name here, and is {name!r}; set client_id if it matters")
        # Mosquitto's defaults where ours are others.
        self._section = {"servers": [], "topics": [], "version": "3.1.1", "notifications": True}
        self._sections[name] = self._section
        self._places[name] = each.place


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else str(value)


# Each handler changes a section, and returns what to tell, or None.

Handler = Callable[[dict[str, Any], str], str | None]


def _addresses(section: dict[str, Any], value: str) -> str | None:
    wrong = []
    for each in value.split():
        full = each if re.search(r":[0-9]+$", each) and not each.endswith("]") else f"{each}:{PORT}"
        try:
            address(full)
        except ValueError as error:
            wrong.append(str(error))
        else:
            section["servers"].append(full)
    return f"left out: {'; '.join(wrong)}" if wrong else None


def _topic(section: dict[str, Any], value: str) -> str | None:
    try:
        line = TopicLine.parse(value)
    except ValueError as error:
        return f"left out: {error}"
    section["topics"].append(value)
    return "QoS 2 is carried with QoS 1, see the README" if line.qos == 2 else None


def _version(section: dict[str, Any], value: str) -> str | None:
    if value not in _VERSIONS:
        return f"{value!r} is left out; there are {', '.join(_VERSIONS)}"
    section["version"] = _VERSIONS[value]
    return "MQTT 3.1 is not spoken: 3.1.1 is used" if value == "mqttv31" else None


def _text(key: str) -> Handler:
    def handler(section: dict[str, Any], value: str) -> None:
        section[key] = value

    return handler


def _flag(key: str, within: str | None = None, *, inverted: bool = False) -> Handler:
    def handler(section: dict[str, Any], value: str) -> str | None:
        if value not in ("true", "false"):
            return f"{value!r} is left out: it is neither true nor false"
        target = section if within is None else section.setdefault(within, {})
        target[key] = (value == "true") is not inverted
        return None

    return handler


def _tls(key: str) -> Handler:
    def handler(section: dict[str, Any], value: str) -> None:
        section.setdefault("tls", {})[key] = value

    return handler


def _keep_alive(section: dict[str, Any], value: str) -> str | None:
    if not re.fullmatch("[0-9]{1,5}", value) or not 1 <= int(value) <= 65_535:
        return f"{value!r} is left out: it is no number of seconds from 1 to 65535"
    section["keep_alive_s"] = int(value)
    return None


def _restart(section: dict[str, Any], value: str) -> str | None:
    numbers = value.split()
    if not 1 <= len(numbers) <= 2 or not all(re.fullmatch("[0-9]{1,6}", each) for each in numbers):
        return f"{value!r} is left out: it is no BASE [CAP] in seconds"
    first, last = max(int(numbers[0]), 1), max(int(numbers[-1]), 1)
    section["sending"] = {"first_pause_s": first, "longest_pause_s": max(first, last)}
    return "it counts for what goes out; for what comes in the pauses are 0.1 to 30 s"


def _password(section: dict[str, Any], value: str) -> str:
    section["password_file"] = ""  # It gets the connection's name.
    return "write the password into the file that password_file names, readable for the broker's user only"


def _start_type(section: dict[str, Any], value: str) -> str | None:
    return None if value == "automatic" else f"{value!r} has no counterpart: connections are always kept"


def _local_only(section: dict[str, Any], value: str) -> str | None:
    if value != "true":
        return None
    section[_LOCAL_ONLY] = True
    return "it has no counterpart: notifications are off; $SYS/bridge/bridge_mqtt/NAME/state has the state here"


def _system_certificates(section: dict[str, Any], value: str) -> str | None:
    if value != "true":
        return None
    section.setdefault("tls", {})
    return None


def _folder_of_certificates(section: dict[str, Any], value: str) -> str:
    section.setdefault("tls", {})
    return f"put the certificates of {value} into one file, and name it in tls.ca_file"


_HANDLERS: Final[Mapping[str, Handler]] = {
    "address": _addresses,
    "addresses": _addresses,
    "topic": _topic,
    "bridge_protocol_version": _version,
    "bridge_cafile": _tls("ca_file"),
    "bridge_capath": _folder_of_certificates,
    "bridge_tls_use_os_certs": _system_certificates,
    "bridge_certfile": _tls("certificate_file"),
    "bridge_keyfile": _tls("key_file"),
    "bridge_alpn": _tls("alpn"),
    "bridge_insecure": _flag("verify_hostname", "tls", inverted=True),
    "cleansession": _flag("clean_start"),
    "clientid": _text("client_id"),
    "remote_clientid": _text("client_id"),
    "username": _text("username"),
    "remote_username": _text("username"),
    "password": _password,
    "remote_password": _password,
    "keepalive_interval": _keep_alive,
    "notifications": _flag("notifications"),
    "notifications_local_only": _local_only,
    "notification_topic": _text("notification_topic"),
    "restart_timeout": _restart,
    "round_robin": _flag("round_robin"),
    "start_type": _start_type,
    "try_private": _flag("bridge"),
}
