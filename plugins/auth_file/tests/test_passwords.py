"""Password files: what is read, what is passed over, and what is a mistake."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_auth_file.hashes import OWASP, Argon2id, Pbkdf2, Sha512
from kinmqtt_auth_file.passwords import MAX_PROBLEMS, Passwords, parse_passwords, problem_with_user
from kinmqtt_spi.errors import SettingsError

ONE = Sha512(b"one", b"1" * 64)
TWO = Pbkdf2(101, b"two", b"2" * 64)


def problems(content: bytes) -> list[str]:
    """What is told of a file that is wrong."""
    with pytest.raises(SettingsError) as told:
        parse_passwords(content, "passwords")
    return list(told.value.problems)


def test_users_are_read() -> None:
    """With comments, blank lines, spaces around, and line ends of either sort; as Mosquitto was seen to do."""
    content = f"# users\n\n   \nann:{ONE}\r\n bob : {TWO} \t\n#carl:{TWO}\ndora d:{ONE}:more\n #eve:{ONE}".encode()

    users = parse_passwords(content, "passwords").users

    assert users == {"ann": ONE, "bob": TWO, "dora d": ONE, "#eve": ONE}


def test_of_two_lines_the_last_holds() -> None:
    """As for Mosquitto."""
    assert parse_passwords(f"ann:{ONE}\nann:{TWO}\n".encode(), "passwords").users == {"ann": TWO}


def test_an_empty_file_has_nobody() -> None:
    """It is no mistake, and an unknown user costs what a new password would."""
    passwords = parse_passwords(b"", "passwords")

    assert passwords.users == {}
    assert passwords.dummy.cost == Argon2id.costing(OWASP).cost


def test_nobody_is_like_most() -> None:
    """An unknown user's verification costs what most of the file's do."""
    other = Pbkdf2(102, b"two", b"2" * 64)

    assert Passwords.of({"a": ONE, "b": TWO, "c": TWO, "d": other}).dummy.cost == TWO.cost
    assert Passwords.of({"a": TWO, "b": ONE, "c": ONE}).dummy.cost == ONE.cost


def test_each_mistake_is_located() -> None:
    """File, line, what and how to mend it; the password is not shown."""
    content = f"ann:{ONE}\nbob:hunter2\ncarl\n:{ONE}\nd\x01:{ONE}\ne:$9$x\nf:\ng:$7$0$a$b\n".encode()

    assert problems(content) == [
        "passwords:2: user 'bob': the password is not hashed; `kinmqtt passwd --hash-plain` hashes such lines",
        "passwords:3: expected user:hash, but there is no ':'; a comment has its '#' in the first column",
        "passwords:4: the user name is empty",
        "passwords:5: the user name 'd\\x01' contains control characters",
        "passwords:6: user 'e': unknown kind of hash; the known ones are $6$, $7$ and $argon2id$; "
        "write the line again with `kinmqtt passwd`",
        "passwords:7: user 'f': there is no password; write the line again with `kinmqtt passwd`",
        "passwords:8: user 'g': the iterations must be a number from 1 to 10000000; "
        "write the line again with `kinmqtt passwd`",
    ]


def test_a_file_of_mistakes_is_told_in_part() -> None:
    """The wrong file altogether does not fill the log."""
    told = problems(b"no\n" * 100)

    assert len(told) == MAX_PROBLEMS + 1
    assert told[-1] == "and 80 more lines"


def test_what_is_no_text_is_told() -> None:
    """Where the first byte is that is not UTF-8, or that there is a byte order mark."""
    assert problems(b"ann:x\n\xe9ve:x\n") == ["passwords:2: not UTF-8: byte 0xe9 in column 1; save the file as UTF-8"]
    assert "byte order mark" in problems(b"\xef\xbb\xbfann:x\n")[0]


@pytest.mark.parametrize("user", ["", "a:b", " a", "a\t", "a\x00b", "a\nb", "a\x7fb", "\udcff", "x" * 65536])
def test_names_that_no_file_can_have(user: str) -> None:
    """Each has a reason in words."""
    assert problem_with_user(user) is not None


@given(st.dictionaries(st.text(min_size=1, max_size=12), st.sampled_from([ONE, TWO]), max_size=5))
def test_what_is_written_is_read(users: dict[str, Sha512 | Pbkdf2]) -> None:
    """Every name that is sound, but for one that makes its line a comment."""
    sound = {user: hash for user, hash in users.items() if problem_with_user(user) is None and user[0] != "#"}
    content = "".join(f"{user}:{hash}\n" for user, hash in sound.items()).encode()

    assert parse_passwords(content, "passwords").users == sound


@given(st.binary(max_size=200))
def test_any_content_is_read_or_a_mistake(content: bytes) -> None:
    """Nothing else is raised."""
    try:
        parse_passwords(content, "passwords")
    except SettingsError as error:
        assert error.problems
