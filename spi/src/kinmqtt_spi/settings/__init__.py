"""Settings: a TOML file's tables, parsed strictly into attrs classes, with every error located.

A settings class is an attrs class whose fields are made with :func:`setting`; :func:`parse` fills it from a
:class:`Document` and the environment, or raises one ``SettingsError`` with all problems.
"""

from kinmqtt_spi.settings._document import Document
from kinmqtt_spi.settings._environment import unknown_environment
from kinmqtt_spi.settings._examples import Row, as_toml, describe
from kinmqtt_spi.settings._fields import checked, setting
from kinmqtt_spi.settings._files import MAX_FILE_BYTES, check_regular, read_file
from kinmqtt_spi.settings._keys import KeyPath
from kinmqtt_spi.settings._named_tables import TABLE_NAME, check_names, referring
from kinmqtt_spi.settings._parse import parse, unknown_tables
from kinmqtt_spi.settings._paths import problem_with_file, problem_with_folder
from kinmqtt_spi.settings._values import problem_with
from kinmqtt_spi.settings._words import did_you_mean

__all__ = [
    "MAX_FILE_BYTES",
    "TABLE_NAME",
    "Document",
    "KeyPath",
    "Row",
    "as_toml",
    "check_names",
    "check_regular",
    "checked",
    "describe",
    "did_you_mean",
    "parse",
    "problem_with",
    "problem_with_file",
    "problem_with_folder",
    "read_file",
    "referring",
    "setting",
    "unknown_environment",
    "unknown_tables",
]
