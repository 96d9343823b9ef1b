"""Fields that hold tables by names that a person chooses."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import frozen

from kinmqtt_spi.errors import SettingsError
from kinmqtt_spi.settings import Document, check_names, parse, referring, setting


@frozen(slots=True)
class Sink:
    """Refers to a server."""

    server: str = setting(help="which")


@frozen(slots=True)
class Sinks:
    """Servers, and what uses them."""

    servers: dict[str, Sink] = setting(factory=dict, help="by name", validator=check_names)
    sinks: dict[str, Sink] = setting(factory=dict, help="by name", validator=referring("server", "servers"))


def read(text: str) -> Any:
    """The settings of a file."""
    return parse(Sinks, Document.parse(text, "kinmqtt.toml"), ())


def test_tables_may_refer_to_others() -> None:
    """By their names."""
    assert read('[servers.main]\nserver = "x"\n[sinks.a]\nserver = "main"\n').sinks["a"].server == "main"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[servers."a b"]\nserver = "x"\n', "'a b' is not a name: use up to 64 of a-z, 0-9, underscore"),
        ('[sinks.a]\nserver = "main"\n', "a.server: no server 'main'; there are: none"),
        ('[servers.Main]\nserver = "x"\n', "'Main' is not a name"),
        ('[servers.main]\nserver = "x"\n[sinks.a]\nserver = "mian"\n', "no server 'mian'; did you mean 'main'"),
        ('[servers.main]\nserver = "x"\n[sinks."ä"]\nserver = "main"\n', "'ä' is not a name"),
    ],
)
def test_what_is_named_wrongly_is_refused(text: str, said: str) -> None:
    """With the nearest spelling, or with what there is."""
    with pytest.raises(SettingsError) as refused:
        read(text)

    assert said in str(refused.value)
