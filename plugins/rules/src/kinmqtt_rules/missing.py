"""What EMQX has and rules have not, each with another way."""

from __future__ import annotations

from typing import Final

from kinmqtt_rules.functions import FUNCTIONS
from kinmqtt_spi.settings import did_you_mean

_WINDOWS: Final = "windows run in Spark only: select from the bridged topic there"

ALTERNATIVES: Final = {
    "jq": "there is no jq; use FOREACH, map_get, or one rule behind another",
    "schema_decode": "there are no schemas; payloads are JSON, or bytes for subbits",
    "schema_encode": "there are no schemas; json_encode makes JSON",
    "schema_check": "there are no schemas; test the fields in WHERE",
    "kv_store_get": "rules store nothing; publish a retained message",
    "kv_store_put": "rules store nothing; publish a retained message",
    "kv_store_del": "rules store nothing; publish a retained message",
    "proc_dict_get": "rules store nothing; publish a retained message",
    "proc_dict_put": "rules store nothing; publish a retained message",
    "proc_dict_del": "rules store nothing; publish a retained message",
    "getenv": "rules do not read the environment; write the value into the SQL",
    "jwt_value": "rules do not read tokens; an authenticator gives attributes: client_attrs",
    "is_not_null": "write … IS NOT NULL",
    "is_empty": "write length(…) = 0 or … = ''",
    "is_bool": "write … IS TRUE OR … IS FALSE",
    "is_int": "write is_num(…)",
    "is_float": "write is_num(…)",
    "map": "use json_decode",
    "lowercase": "use lower",
    "uppercase": "use upper",
    "uuid_v4": "use id, the broker's id of the message",
    "random": "rules give the same for the same message; use id",
    "tumble": _WINDOWS,
    "hop": _WINDOWS,
    "session_window": _WINDOWS,
    "count": _WINDOWS,
    "sum": _WINDOWS,
    "avg": _WINDOWS,
    "min": _WINDOWS,
    "max": _WINDOWS,
}
"""By the name of a function, in small letters."""


def reason_for_none(name: str) -> str:
    """Return the text about an unknown function."""
    other = ALTERNATIVES.get(name.lower())
    if other is not None:
        return f"no function {name!r} here: {other}"
    return f"unknown function {name!r}{did_you_mean(name, FUNCTIONS)}"
