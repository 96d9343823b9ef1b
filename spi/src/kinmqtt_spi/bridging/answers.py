"""Checks a sink's answer to a batch: a sink may return anything."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from kinmqtt_spi.services.bridge import Answer, Poison, Retry

_EXPECTED = "expected None, or for each message None, Retry or Poison"


class WrongAnswer(TypeError):
    """A sink returned an invalid answer; the text says what was expected."""


def checked(answer: Any, count: int) -> Sequence[Answer] | None:
    """Return a sink's answer to ``count`` messages; raises :class:`WrongAnswer`."""
    if answer is None:
        return None
    try:
        return _checked(answer, count)
    except WrongAnswer:
        raise
    except Exception as error:  # its parts may raise anything
        raise WrongAnswer(f"its answer can't be read ({type(error).__name__}); {_EXPECTED}") from error


def _checked(answer: Any, count: int) -> Sequence[Answer]:
    if isinstance(answer, str | bytes | Retry | Poison) or not isinstance(answer, Sequence):
        raise WrongAnswer(f"it returned a {type(answer).__name__}; {_EXPECTED}")
    answers = tuple(answer)
    if len(answers) != count:
        raise WrongAnswer(f"it returned {len(answers)} answers for {count} messages; {_EXPECTED}")
    for number, each in enumerate(answers, 1):
        problem = None if each is None else _problem(each)
        if problem is not None:
            raise WrongAnswer(f"its answer for message {number} of {count} {problem}; {_EXPECTED}")
    return answers


def _problem(answer: Any) -> str | None:
    if not isinstance(answer, Retry | Poison):
        return f"is a {type(answer).__name__}"
    text: Any = answer.text
    if not isinstance(text, str):
        return f"has a text that is a {type(text).__name__}"
    if isinstance(answer, Retry) and answer.after_s is not None:
        after_s: Any = answer.after_s
        if not isinstance(after_s, int | float) or not 0 <= after_s < inf:
            return "has an after_s that is not a finite number of seconds >= 0"
    return None
