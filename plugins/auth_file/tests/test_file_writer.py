"""Changing password files."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_auth_file.file_writer import locked, replace, users_in, with_hashes, with_user, without_user
from kinmqtt_auth_file.hashes import PasswordHash, Sha512
from kinmqtt_spi.errors import SettingsError

HASH = Sha512(b"salt", b"d" * 64)
USERS = st.text("ab", min_size=1, max_size=2)
LINES = st.lists(
    st.builds(lambda user, rest: f"{user}:{rest}".encode(), USERS, st.text("x:$", max_size=3))
    | st.sampled_from([b"", b"# a:b", b"  ", b"no colon", b"\xff:\xfe"]),
    max_size=6,
)


def test_a_users_line_is_changed_where_it_stands() -> None:
    """With its line end; everything else stays, also what is no sound line."""
    content = b"# ann:x\r\n ann :old\r\nbob:$8$what\n\xffnonsense"

    assert with_user(content, "ann", HASH) == f"# ann:x\r\nann:{HASH}\r\nbob:$8$what\n".encode() + b"\xffnonsense"


def test_a_new_user_stands_at_the_end() -> None:
    """On a line of its own, also where the file ended without one."""
    assert with_user(b"bob:x", "ann", HASH) == f"bob:x\nann:{HASH}\n".encode()
    assert with_user(b"", "ann", HASH) == f"ann:{HASH}\n".encode()


def test_of_several_lines_one_is_left() -> None:
    """So that the password that was set is the one that holds."""
    assert with_user(b"ann:1\nbob:2\nann:3\n", "ann", HASH) == f"ann:{HASH}\nbob:2\n".encode()


def test_a_user_is_removed_with_all_lines() -> None:
    """And what is not there can't be."""
    assert without_user(b"ann:1\nbob:2\nann:3", "ann") == b"bob:2\n"
    assert without_user(b"#ann:1\nbob:2\n", "ann") is None


@given(LINES, USERS, st.sampled_from([b"\n", b"\r\n"]), st.booleans())
def test_all_other_lines_stay(lines: list[bytes], user: str, end: bytes, ended: bool) -> None:
    """Byte for byte and in order, whatever they are."""
    content = end.join(lines) + (end if ended and lines else b"")

    changed = with_user(content, user, HASH)
    removed = without_user(changed, user)

    assert removed is not None
    assert users_in(changed).count(user) == 1
    others = [line for line in content.replace(b"\r", b"").split(b"\n") if line.split(b":")[0] != user.encode()]
    left = removed.replace(b"\r", b"").split(b"\n")
    assert [line for line in left if line] == [line for line in others if line]


def test_users_are_listed_once() -> None:
    """In their order, and what is no name of anybody is left out."""
    assert users_in(b"bob:1\n# x:y\nann:2\n\nbob:3\nnobody\n:x\n") == ["bob", "ann"]


def test_plain_passwords_are_hashed() -> None:
    """All that follows the colon is the password, but for spaces at its ends; hashes and comments stay."""
    made: list[bytes] = []

    def make(password: bytes) -> PasswordHash:
        made.append(password)
        return HASH

    content, count = with_hashes(f"# x:y\nann: a:b \r\nbob:{HASH}\ncarl:$ecret\n".encode(), "passwords", make)

    assert content == f"# x:y\nann:{HASH}\r\nbob:{HASH}\ncarl:{HASH}\n".encode()
    assert (made, count) == ([b"a:b", b"$ecret"], 2)


def test_what_may_be_a_broken_hash_is_not_hashed_again() -> None:
    """Nor is an empty password, or one of a name that no client can have."""
    with pytest.raises(SettingsError) as told:
        with_hashes(b"ann:$7$1$x\nbob:\n:x\n\xff:x\n", "passwords", lambda password: HASH)

    assert told.value.problems == (
        "passwords:1: the password of user 'ann' is a malformed hash",
        "passwords:2: the password of user 'bob' is empty",
        "passwords:3: the user name is empty",
        "passwords:4: the user name '\\udcff' is not UTF-8",
    )


# On disk


def test_the_new_file_has_owner_and_mode_of_the_old(tmp_path: Path) -> None:
    """And is another file, so that readers see one or the other."""
    path = tmp_path / "passwords"
    path.write_bytes(b"old")
    path.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(path, 1234, 5678)
    before = path.stat()

    replace(path, b"new")

    after = path.stat()
    assert path.read_bytes() == b"new"
    assert (after.st_uid, after.st_gid, after.st_mode) == (before.st_uid, before.st_gid, before.st_mode)
    assert after.st_ino != before.st_ino
    assert list(tmp_path.iterdir()) == [path]


def test_what_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old file is there as it was, and no other is left."""
    path = tmp_path / "passwords"
    path.write_bytes(b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SettingsError, match="No space left on device"):
        replace(path, b"new")

    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_is_its_owners_only(tmp_path: Path) -> None:
    """And one that exists is not made anew."""
    path = tmp_path / "passwords"
    with locked(path, create=True):
        pass

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(SettingsError, match="exists already"):
        with locked(path, create=True):
            pass


def test_symbolic_links_are_followed(tmp_path: Path) -> None:
    """The file behind them is changed, and they stay."""
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")

    with locked(tmp_path / "link") as path:
        replace(path, b"new")

    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    """With what to do about it."""
    with pytest.raises(SettingsError, match="there is no such file; --create makes one"):
        with locked(tmp_path / "passwords"):
            pass


def test_many_at_once_lose_nothing(tmp_path: Path) -> None:
    """Each waits for the other, also where the file was replaced meanwhile."""
    path = tmp_path / "passwords"
    path.touch()

    def add(number: int) -> None:
        for round in range(5):
            with locked(path) as real:
                replace(real, with_user(real.read_bytes(), f"user-{number}-{round}", HASH))

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert len(users_in(path.read_bytes())) == 40


def test_what_is_no_regular_file_is_not_edited(tmp_path: Path) -> None:
    """Nothing waits for a FIFO, and none is locked."""
    os.mkfifo(tmp_path / "fifo")

    with pytest.raises(SettingsError, match="it is a FIFO, not a regular file"):
        with locked(tmp_path / "fifo"):
            pass


def test_a_hard_link_is_cut(tmp_path: Path) -> None:
    """Its other names keep the old content."""
    (tmp_path / "one").write_bytes(b"old")
    (tmp_path / "other").hardlink_to(tmp_path / "one")

    with locked(tmp_path / "one") as path:
        replace(path, b"new")

    assert (tmp_path / "one").read_bytes() == b"new"
    assert (tmp_path / "other").read_bytes() == b"old"
