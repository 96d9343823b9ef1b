"""``kinmqtt passwd``, as the core calls it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from importlib import metadata
from io import FileIO
from pathlib import Path

import pytest

from kinmqtt_auth_file.hashes import Argon2id, Kind, parse_hash
from kinmqtt_auth_file.passwd import Passwd, command
from kinmqtt_auth_file.passwords import parse_passwords
from kinmqtt_spi.commands import COMMAND_GROUP
from kinmqtt_spi.errors import SettingsError

CHEAP = '[plugins.auth_file.argon2]\ntime_cost = 1\nmemory_bytes = "1 MiB"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where the passwords are going to be, beside settings that make them quick."""
    (tmp_path / "kinmqtt.toml").write_text(CHEAP)
    return tmp_path / "passwords"


def run(file: Path, *arguments: str, typed: list[str] | None = None, piped: bytes | None = None) -> int:
    """Run the command; ``typed`` is what somebody types at the terminal, ``piped`` what standard input has."""
    answers: Iterator[str] = iter(typed or [])

    def ask(prompt: str) -> str:
        try:
            return next(answers)
        except StopIteration:
            raise EOFError from None

    passwd = Passwd(ask, lambda: io.BytesIO(piped or b""), lambda: typed is not None)
    parser = ArgumentParser()
    passwd.add_arguments(parser)
    more = [] if piped is None else ["--password-stdin"]
    settings = ["-c", str(file.with_name("kinmqtt.toml"))]
    status = passwd.run(parser.parse_args([str(file), *arguments, *more, *settings]))
    assert list(answers) == []
    return status


def test_a_user_is_added_changed_and_removed(file: Path) -> None:
    """In a file that the first one makes, for its owner only."""
    assert run(file, "ann", "--create", piped=b"secret\n") == 0
    assert run(file, "bob", piped=b"hunter2\r\n") == 0
    assert run(file, "ann", typed=["new", "new"]) == 0

    users = parse_passwords(file.read_bytes(), "passwords").users
    assert list(users) == ["ann", "bob"]
    assert users["ann"].verify(b"new")
    assert users["bob"].verify(b"hunter2")
    assert file.stat().st_mode & 0o777 == 0o600
    assert run(file, "ann", "--delete") == 0
    assert list(parse_passwords(file.read_bytes(), "passwords").users) == ["bob"]


def test_new_passwords_are_argon2id_and_others_on_request(file: Path) -> None:
    """With the cost that the settings say; what Mosquitto reads is asked for."""
    run(file, "ann", "--create", piped=b"a")
    run(file, "bob", "--hash", "pbkdf2-sha512", "--iterations", "101", piped=b"b")

    ann, bob = parse_passwords(file.read_bytes(), "passwords").users.values()
    assert isinstance(ann, Argon2id)
    assert "m=1024,t=1,p=1" in str(ann)
    assert bob.kind is Kind.PBKDF2_SHA512
    assert str(bob).startswith("$7$101$")


def test_a_password_is_checked(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """0 where it is right; else 1, for unknown users too."""
    run(file, "ann", "--create", piped=b"secret")

    assert run(file, "ann", "--check", piped=b"secret\n") == 0
    assert run(file, "ann", "--check", typed=["secret"]) == 0
    assert run(file, "ann", "--check", piped=b"wrong") == 1
    assert run(file, "bob", "--check", piped=b"secret") == 1
    assert capsys.readouterr().out.splitlines() == [
        "the password of 'ann' is right",
        "the password of 'ann' is right",
        "unknown user 'ann', or wrong password",
        "unknown user 'bob', or wrong password",
    ]


def test_users_are_listed(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One on each line."""
    file.write_text("bob:x\n# c:x\nann:y\n")

    assert run(file, "--list") == 0
    assert capsys.readouterr().out == "bob\nann\n"


def test_what_a_terminal_would_obey_is_escaped(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file from somewhere else may have names that clear the screen, or look like others."""
    file.write_text("a\x1b[2J:x\nb\r\x07:y\nc\u202ed:z\nj\u00f6rg x:z\n")

    assert run(file, "--list") == 0
    assert capsys.readouterr().out.splitlines() == ["a\\x1b[2J", "b\\r\\x07", "c\\u202ed", "j\u00f6rg x"]


@pytest.mark.parametrize("piped", [b"one\ntwo", b"one\n\n", b"one\r\ntwo\n"])
def test_more_than_one_line_is_no_password(file: Path, capsys: pytest.CaptureFixture[str], piped: bytes) -> None:
    """Which of them was meant is not guessed."""
    file.touch()

    assert run(file, "ann", piped=piped) == 2
    assert "more than one line on standard input" in capsys.readouterr().err
    assert file.read_bytes() == b""


def pipe_with(first: bytes, *later: bytes, ends: bool) -> Iterator[FileIO]:
    """The end to read from of a pipe that has the first part, and gets others as soon as it was read from."""
    reading, writing = os.pipe()
    os.write(writing, first)
    pieces = list(later)

    class Pipe(FileIO):
        def read(self, size: int | None = -1, /) -> bytes:
            piece = super().read(size)
            if pieces:
                os.write(writing, pieces.pop(0))
            return piece

    with Pipe(reading) as stream:
        if ends:
            os.close(writing)
        yield stream
        if not ends:
            os.close(writing)


@pytest.mark.parametrize(
    ("parts", "ends", "status"),
    [
        ((b"secret\n",), False, 0),  # who wrote it keeps the pipe open: the end is not waited for
        ((b"se", b"cret\r", b"\n"), False, 0),
        ((b"secret\n",), True, 0),
        ((b"secret",), True, 0),
        ((b"secret\n", b"more"), False, 2),
    ],
)
def test_a_line_from_a_pipe_is_enough(file: Path, parts: tuple[bytes, ...], ends: bool, status: int) -> None:
    """It may come in parts."""
    for stream in pipe_with(*parts, ends=ends):
        passwd = Passwd(standard_input=lambda stream=stream: stream)  # type: ignore[misc]
        parser = ArgumentParser()
        passwd.add_arguments(parser)
        settings = ["-c", str(file.with_name("kinmqtt.toml"))]
        parsed = parser.parse_args([str(file), "ann", "--create", "--password-stdin", *settings])

        assert passwd.run(parsed) == status

    if not status:
        assert parse_passwords(file.read_bytes(), "passwords").users["ann"].verify(b"secret")


def test_plain_passwords_are_hashed(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As `mosquitto_passwd -U` does, but that hashes stay as they are."""
    file.write_text("ann:secret\n")

    assert run(file, "--hash-plain") == 0
    hashed = file.read_bytes()
    assert parse_passwords(hashed, "passwords").users["ann"].verify(b"secret")
    assert run(file, "--hash-plain") == 0
    assert file.read_bytes() == hashed
    assert capsys.readouterr().out == "1 password hashed\n0 passwords hashed\n"


@pytest.mark.parametrize(
    ("arguments", "typed", "told"),
    [
        (["ann"], ["one", "two"], "the two passwords are different"),
        (["ann"], ["", ""], "the password is empty"),
        (["ann"], [], "no password was typed"),
        (["ann"], ["one"], "no password was typed"),
        (["ann"], ["x" * 65536] * 2, "longer than MQTT allows"),
        (["ann"], ["x\0"] * 2, "ends with a zero byte"),
        (["ann"], None, "no terminal to ask for the password; --password-stdin"),
        (["a:b"], None, "contains a ':'"),
        (["a\nb"], None, "control characters"),
        ([" a"], None, "begins or ends with a space"),
        (["#a"], None, "makes its line a comment"),
        (["ann", "--list"], None, "don't take a USER"),
        (["--hash-plain", "ann"], None, "don't take a USER"),
        (["ann", "--iterations", "0"], None, "--iterations must be from 1"),
    ],
)
def test_mistakes_in_usage(
    file: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], typed: list[str] | None, told: str
) -> None:
    """Each is told in a line, the status is 2, and the file is as it was."""
    file.write_text("# nothing\n")

    assert run(file, *arguments, typed=typed) == 2

    error = capsys.readouterr().err
    assert error.startswith("kinmqtt passwd: ") and told in error
    assert file.read_text() == "# nothing\n"


@pytest.mark.parametrize(
    "arguments", [["ann"], ["--list"], ["ann", "--check"], ["ann", "--delete"], ["--hash-plain"]]
)
def test_a_file_that_is_not_there_is_told(file: Path, arguments: list[str]) -> None:
    """Before a password is asked for."""
    with pytest.raises(SettingsError, match="there is no such file"):
        run(file, *arguments)


def test_what_is_no_file_is_told(tmp_path: Path) -> None:
    """In the system's words."""
    (tmp_path / "kinmqtt.toml").write_text(CHEAP)
    (tmp_path / "passwords").mkdir()

    with pytest.raises(SettingsError, match="can't be read: Is a directory"):
        run(tmp_path / "passwords", "--list")


@pytest.mark.parametrize(
    "arguments", [["ann"], ["--list"], ["ann", "--check"], ["ann", "--delete"], ["--hash-plain"]]
)
def test_a_fifo_is_told(file: Path, arguments: list[str]) -> None:
    """Nobody waits for somebody who writes to it."""
    os.mkfifo(file)

    with pytest.raises(SettingsError, match="it is a FIFO, not a regular file"):
        run(file, *arguments)


def test_who_is_not_there_can_not_be_removed(file: Path) -> None:
    """Which is told; and a file is not made twice."""
    run(file, "ann", "--create", piped=b"x")

    with pytest.raises(SettingsError, match="there is no user 'bob'"):
        run(file, "bob", "--delete")
    with pytest.raises(SettingsError, match="exists already"):
        run(file, "bob", "--create", piped=b"x")


def test_a_user_is_wanted_where_options_do_not_say_otherwise(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Wherever the options stand."""
    run(file, "ann", "--create", piped=b"x")
    for arguments in (["--check", "ann"], ["ann", "--check"]):
        assert run(file, *arguments, piped=b"x") == 0

    with pytest.raises(SystemExit):
        run(file, "--check", piped=b"x")
    assert "the following arguments are required: USER" in capsys.readouterr().err


def test_a_password_is_no_argument(file: Path) -> None:
    """Everybody could read it in the process list."""
    with pytest.raises(SystemExit):
        run(file, "ann", "secret")


def test_the_core_finds_the_command() -> None:
    """By its entry point, with a line for the list of commands."""
    [point] = [point for point in metadata.entry_points(group=COMMAND_GROUP) if point.name == "passwd"]

    assert point.load() is command
    assert command.summary


def test_defaults_are_sound(tmp_path: Path) -> None:
    """Without settings a password costs what OWASP asks for."""
    passwd = Passwd(standard_input=lambda: io.BytesIO(b"x"))
    parser = ArgumentParser()
    passwd.add_arguments(parser)
    parsed = parser.parse_args([str(tmp_path / "passwords"), "ann", "--create", "--password-stdin"])

    assert passwd.run(parsed) == 0

    made = (tmp_path / "passwords").read_text().strip().removeprefix("ann:")
    assert made.startswith("$argon2id$v=19$m=19456,t=2,p=1$")
    assert parse_hash(made).verify(b"x")
    assert parsed.iterations >= 210_000


def test_the_command_needs_little() -> None:
    """Neither the plugin nor Twisted is imported for it: a password is set in no time."""
    code = "import sys, kinmqtt_auth_file.passwd; print(*{'twisted', 'kinmqtt_auth_file._plugin'} & set(sys.modules))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "\n"
