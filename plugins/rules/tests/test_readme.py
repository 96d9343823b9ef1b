"""The README has every setting, and its examples are valid; so are those of docs/rules.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import attrs
import pytest

from kinmqtt_rules import RulesSettings
from kinmqtt_rules.checking import check
from kinmqtt_rules.compiling import compile_rule
from kinmqtt_rules.settings import ActionSettings, RepublishSettings, RuleSettings
from kinmqtt_rules.spark import spark_sql
from kinmqtt_spi.settings import Document, parse

DOCS = (Path(__file__).parents[3] / "docs" / "rules.md").read_text(encoding="utf-8")
README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
CLASSES = (RuleSettings, ActionSettings, RepublishSettings)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_setting_is_described(cls: type[Any]) -> None:
    """In a table."""
    for attribute in attrs.fields(cls):
        assert f"| `{attribute.name}` |" in README


def test_no_other_setting_is_described() -> None:
    """A key that was renamed is found."""
    known = {attribute.name for cls in CLASSES for attribute in attrs.fields(cls)}

    assert set(re.findall(r"^\| `([a-z_]+)` \|", README, re.MULTILINE)) <= known


def test_the_example_is_valid() -> None:
    """Both of its rules."""
    example, _ = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)

    settings = parse(RulesSettings, Document.parse(example), ("plugins", "rules"))

    assert list(settings.rules) == ["hot", "come"]


def test_the_page_shows_what_is_printed() -> None:
    """The function and the query of Spark."""
    [example] = re.findall(r"```toml\n(.*?)```", DOCS, re.DOTALL)
    [function] = re.findall(r"^def rule.*?(?=^```)", DOCS, re.DOTALL | re.MULTILINE)
    [(sql, query)] = re.findall(r"--sql '(.*?)'\n(.*?)\n```", DOCS, re.DOTALL)

    settings = parse(RulesSettings, Document.parse(example), ("plugins", "rules"))

    assert compile_rule(check(settings.rules["hot"].sql)).source == function
    assert spark_sql(check(sql)) == query
