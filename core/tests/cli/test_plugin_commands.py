"""Commands that plugins bring, in processes of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from core_harness.brokers import run_command
from core_harness.surroundings import Surroundings

GREET = """
from kinmqtt_spi.errors import SpiError

summary = "greet somebody"

def add_arguments(parser):
    parser.add_argument("name")
    parser.add_argument("--loud", action="store_true")

def run(parsed):
    if parsed.name == "nobody":
        raise SpiError("there is nobody to greet\\nname somebody")
    print(parsed.name.upper() if parsed.loud else parsed.name)
    return 3
"""


@pytest.fixture
def surroundings(tmp_path: Path) -> Surroundings:
    """Where a test's plugins are installed."""
    return Surroundings(tmp_path)


def test_a_plugins_command_runs(surroundings: Surroundings) -> None:
    """It gets its arguments, and its exit status is the process's."""
    surroundings.install("greetings", GREET, {"greet": "greetings"}, "kinmqtt.commands")

    done = run_command("greet", "ada", "--loud", env=surroundings.environment)

    assert (done.returncode, done.stdout, done.stderr) == (3, "ADA\n", "")


def test_a_plugins_command_is_listed(surroundings: Surroundings) -> None:
    """It stands among the others, and has a help of its own."""
    surroundings.install("greetings", GREET, {"greet": "greetings"}, "kinmqtt.commands")

    assert "greet somebody" in run_command("--help", env=surroundings.environment).stdout
    assert "--loud" in run_command("greet", "--help", env=surroundings.environment).stdout


def test_a_plugins_command_tells_what_went_wrong(surroundings: Surroundings) -> None:
    """An error of the SPI's is shown line by line, without a traceback; unknown arguments with the usage."""
    surroundings.install("greetings", GREET, {"greet": "greetings"}, "kinmqtt.commands")

    failed = run_command("greet", "nobody", env=surroundings.environment)
    misused = run_command("greet", "ada", "--soft", env=surroundings.environment)

    assert failed.returncode == 1
    assert failed.stderr == "kinmqtt: there is nobody to greet\nkinmqtt: name somebody\n"
    assert misused.returncode == 2
    assert misused.stderr.startswith("usage: kinmqtt greet")


def test_a_command_that_can_not_be_loaded_costs_no_other(surroundings: Surroundings) -> None:
    """It is named with its distribution, and all other commands are there."""
    surroundings.install("greetings", GREET, {"greet": "greetings"}, "kinmqtt.commands")
    surroundings.install("broken", "import nothing_of_that_name", {"smash": "broken"}, "kinmqtt.commands")

    done = run_command("greet", "ada", env=surroundings.environment)

    assert done.stdout == "ada\n"
    assert done.stderr.startswith("kinmqtt: the command 'smash' of broken 1.0 can't be loaded: ModuleNotFoundError")
    assert run_command("version", env=surroundings.environment).stderr == ""


def test_a_command_whose_arguments_fail_costs_no_other(surroundings: Surroundings) -> None:
    """Also where it got as far as declaring some."""
    source = "summary = 'x'\nrun = print\ndef add_arguments(parser):\n    parser.add_argument('a')\n    1 / 0"
    surroundings.install("greetings", GREET, {"greet": "greetings"}, "kinmqtt.commands")
    surroundings.install("broken", source, {"smash": "broken"}, "kinmqtt.commands")

    done = run_command("--help", env=surroundings.environment)

    assert done.returncode == 0
    assert "greet somebody" in done.stdout
    assert "smash" not in done.stdout
    assert "the command 'smash' of broken 1.0 can't be loaded: ZeroDivisionError" in done.stderr


@pytest.mark.parametrize("source", ["summary = 'x'", "def run(parsed): return 0"])
def test_a_command_must_be_one(surroundings: Surroundings, source: str) -> None:
    """What lacks a part is said to be no command."""
    surroundings.install("half", source, {"half": "half"}, "kinmqtt.commands")

    done = run_command("half", env=surroundings.environment)

    assert "it is not a kinmqtt_spi.commands.Command" in done.stderr
    assert done.returncode == 2


def test_two_commands_of_one_name_are_refused(surroundings: Surroundings) -> None:
    """Neither is chosen by chance; the broker's own are not to be replaced."""
    surroundings.install("greetings", GREET, {"greet": "greetings"}, "kinmqtt.commands")
    surroundings.install("welcome", GREET, {"greet": "welcome", "run": "welcome"}, "kinmqtt.commands")

    done = run_command("greet", "ada", env=surroundings.environment)

    assert done.returncode == 1
    assert "both" not in done.stdout
    assert "brings a command 'greet', and so does" in done.stderr


def test_a_known_command_that_is_not_installed(surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever types one of ours is told what to install."""
    from kinmqtt.cli import plugin_commands as commands
    from kinmqtt_spi.errors import AssemblyError

    monkeypatch.setattr(commands, "entry_points", lambda group: ())

    with pytest.raises(AssemblyError, match="is part of kinmqtt-auth-file: pip install kinmqtt-auth-file"):
        commands.add_plugin_commands(None, ("run",), "passwd")
