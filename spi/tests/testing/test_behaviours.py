"""What a suite promises can be listed, and what fails or is skipped says which promise it is."""

from __future__ import annotations

from typing import Any

import pytest

from kinmqtt_spi.testing.behaviours import Behaviour, behaviour, behaviours_of


class Suite:
    """Promises little."""

    can_more = False

    @behaviour("SUITE-02", needs="can_more")
    def test_suite_02_does_more(self) -> None:
        """It does more,
        on two lines.
        """
        raise KeyError("not yet")

    @behaviour("SUITE-01")
    def test_suite_01_does_something(self, wanted: int, given: int = 1) -> None:
        """It does something."""
        assert given == wanted

    def test_without_a_number(self) -> None:
        """This is no promise."""


class Derived(Suite):
    """Can more."""

    can_more = True


def test_behaviours_are_listed_by_number() -> None:
    """A suite's behaviours come in the order of their numbers, each with its promise in one line."""
    assert list(behaviours_of(Suite)) == [
        Behaviour("SUITE-01", "It does something."),
        Behaviour("SUITE-02", "It does more, on two lines.", "can_more"),
    ]
    assert list(behaviours_of(Derived)) == list(behaviours_of(Suite))


def test_what_is_not_asked_for_is_skipped() -> None:
    """A behaviour whose flag is not set is skipped; the skip says number, class, flag and promise."""
    with pytest.raises(pytest.skip.Exception) as skipped:
        Suite().test_suite_02_does_more()

    assert str(skipped.value) == "SUITE-02 is skipped: Suite.can_more is False (It does more, on two lines.)"


def test_what_is_asked_for_runs() -> None:
    """Where the flag is set the test runs, and what it raises carries the number and the promise."""
    with pytest.raises(KeyError) as raised:
        Derived().test_suite_02_does_more()

    assert raised.value.__notes__ == ["SUITE-02: It does more, on two lines."]


def test_a_failure_says_which_promise_was_broken() -> None:
    """An assertion that fails carries the number and the promise; arguments reach the test as they are."""
    Suite().test_suite_01_does_something(2, given=2)
    with pytest.raises(AssertionError) as raised:
        Suite().test_suite_01_does_something(wanted=2)

    assert raised.value.__notes__ == ["SUITE-01: It does something."]


def test_a_test_may_skip_itself() -> None:
    """A skip from within a test is no failure, and carries no note."""

    class Skipping:
        @behaviour("SUITE-03")
        def test_suite_03_skips(self) -> None:
            """It can't tell."""
            pytest.skip("nothing to see")

    with pytest.raises(pytest.skip.Exception, match="nothing to see") as skipped:
        Skipping().test_suite_03_skips()

    assert not getattr(skipped.value, "__notes__", [])


@pytest.mark.parametrize("number", ["SUITE-3", "suite-03", "SUITE03", "SUITE-003", "", "SUITE-03 "])
def test_a_number_has_one_form(number: str) -> None:
    """A number that is not of the form FAMILY-NN is refused where it is given."""

    def test_suite_03_something(self: Any) -> None:
        """It does something."""

    with pytest.raises(ValueError, match="write FAMILY-NN"):
        behaviour(number)(test_suite_03_something)


def test_a_name_begins_with_the_number() -> None:
    """A test whose name has another number than its behaviour is refused: who reads a report goes by the name."""

    def test_suite_04_something(self: Any) -> None:
        """It does something."""

    with pytest.raises(ValueError, match="its name must begin with test_suite_03_"):
        behaviour("SUITE-03")(test_suite_04_something)


def test_a_promise_is_needed() -> None:
    """A test without a docstring promises nothing, and is refused."""

    def test_suite_03_something(self: Any) -> None:
        pass

    with pytest.raises(TypeError, match="no docstring"):
        behaviour("SUITE-03")(test_suite_03_something)


def test_a_number_is_given_once() -> None:
    """Of two promises under one number one would be asked for by nobody's docs, and have no double."""

    class Twice:
        @behaviour("TWICE-01")
        def test_twice_01_one(self) -> None:
            """One."""

        @behaviour("TWICE-01")
        def test_twice_01_another(self) -> None:
            """Another."""

    with pytest.raises(ValueError, match="Twice gives the number TWICE-01 to two behaviours"):
        list(behaviours_of(Twice))
