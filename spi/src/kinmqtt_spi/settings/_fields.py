"""Declares fields of settings classes: attrs.field with texts for messages and documentation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeVar, overload

import attrs
from attrs import frozen

T = TypeVar("T")

MASK: Final = "***"
"""What is shown instead of a secret."""

_METADATA: Final = "kinmqtt_setting"


@frozen(slots=True)
class Rule:
    """The properties of a field beyond its type; see :func:`setting`."""

    help: str = ""
    unit: str | None = None
    minimum: float | None = None
    maximum: float | None = None
    secret: bool = False
    one_of: tuple[Any, ...] | None = None
    finite: bool = True
    path: Literal["file", "folder"] | None = None
    others: bool = False


_NO_RULE: Final = Rule()


@overload
def setting(
    default: T,
    *,
    help: str = "",
    unit: str | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    secret: bool = False,
    one_of: Sequence[Any] | None = None,
    finite: bool = True,
    path: Literal["file", "folder"] | None = None,
    others: bool = False,
    validator: Any = None,
) -> T: ...
@overload
def setting(
    *,
    factory: Callable[[], T],
    help: str = "",
    unit: str | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    secret: bool = False,
    one_of: Sequence[Any] | None = None,
    finite: bool = True,
    path: Literal["file", "folder"] | None = None,
    others: bool = False,
    validator: Any = None,
) -> T: ...
@overload
def setting(
    *,
    help: str = "",
    unit: str | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    secret: bool = False,
    one_of: Sequence[Any] | None = None,
    finite: bool = True,
    path: Literal["file", "folder"] | None = None,
    others: bool = False,
    validator: Any = None,
) -> Any: ...
def setting(
    default: Any = attrs.NOTHING,
    *,
    factory: Callable[[], Any] | None = None,
    help: str = "",
    unit: str | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    secret: bool = False,
    one_of: Sequence[Any] | None = None,
    finite: bool = True,
    path: Literal["file", "folder"] | None = None,
    others: bool = False,
    validator: Any = None,
) -> Any:
    """Declare a field of a settings class; without ``default`` and ``factory`` its key is required.

    Fields are keyword-only, so that required ones may follow those with defaults.

    :param help: one sentence for the documentation and the example section.
    :param unit: ``"bytes"`` accepts sizes such as ``"8 MiB"``, ``"s"`` durations such as ``"5 min"``; the field is
        then in bytes or seconds. Any other unit is only shown.
    :param minimum: the minimum, of each element if the field is a list; in the base unit.
    :param maximum: the maximum, likewise.
    :param secret: never show the value, in messages, representations or documentation.
    :param one_of: the allowed values, of each element if the field is a list.
    :param finite: refuse ``nan`` and ``inf``.
    :param path: ``"file"`` for a readable file, ``"folder"`` for a writable folder, which is made if it is missing;
        see ``check_paths`` of :func:`parse`.
    :param others: the field is a ``dict`` that has all keys of the section that no other field has.
    :param validator: an attrs validator; the text of its ``ValueError`` is the problem.
    """
    rule = Rule(help, unit, minimum, maximum, secret, None if one_of is None else tuple(one_of), finite, path, others)
    return attrs.field(
        default=attrs.Factory(factory) if factory is not None else default,
        validator=validator,
        repr=_masked if secret else True,
        kw_only=True,
        metadata={_METADATA: rule},
    )


def checked(check: Callable[[Any], object]) -> Callable[[object, object, Any], None]:
    """Return a validator for :func:`setting`; ``check`` takes the value and raises ``ValueError``."""

    def validator(instance: object, attribute: object, value: Any) -> None:
        check(value)

    return validator


def rule_of(attribute: attrs.Attribute[Any]) -> Rule:
    """Return the rule that :func:`setting` stored in the field; an empty rule for a plain attrs field."""
    rule: Rule = attribute.metadata.get(_METADATA, _NO_RULE)
    return rule


def _masked(value: object) -> str:
    # Whether a secret is set at all is worth knowing, and tells nothing.
    return "None" if value is None else f"'{MASK}'"
