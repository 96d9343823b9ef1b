"""`kinmqtt new-plugin`: which names it takes, and that what it writes is whole. Root tests run it."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path

import pytest

from kinmqtt.cli import new_plugin
from kinmqtt.cli.new_plugin import write
from kinmqtt_spi.errors import AssemblyError


class Installed(metadata.Distribution):
    """A distribution that is installed, with what it brings."""

    def __init__(self, name: str, entry_points: str = "") -> None:
        self._files = {"METADATA": f"Name: {name}\nVersion: 3\n", "entry_points.txt": entry_points}

    def read_text(self, filename: str) -> str | None:
        """A file's text."""
        return self._files.get(filename)

    def locate_file(self, path: str | os.PathLike[str]) -> Path:
        """Nowhere."""
        return Path(path)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plugins and commands of somebody's."""
    point = metadata.EntryPoint
    there = Installed("acme")
    points = {
        ("kinmqtt.plugins", "door"): point("door", "acme:door", "kinmqtt.plugins"),
        ("kinmqtt.commands", "knock"): point("knock", "acme:knock", "kinmqtt.commands"),
    }
    for each in points.values():
        vars(each)["dist"] = there

    def version(name: str) -> str:
        if name != "kinmqtt-my-door":
            raise metadata.PackageNotFoundError(name)
        return "7"

    def entry_points(group: str, name: str) -> list[metadata.EntryPoint]:
        return [points[group, name]] if (group, name) in points else []

    monkeypatch.setattr(new_plugin, "version", version)
    monkeypatch.setattr(new_plugin, "entry_points", entry_points)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("spi", "kinmqtt-spi is kinmqtt's own; take another name"),
        ("core", "kinmqtt-core is kinmqtt's own; take another name"),
        ("metrics", "kinmqtt-metrics is kinmqtt's own; take another name"),
        ("auth_file", "kinmqtt-auth-file is kinmqtt's own; take another name"),
        (
            "my_door",
            "kinmqtt-my-door 7 is installed, and would be replaced; use another name, or uninstall it",
        ),
        ("door", "acme 3 has a plugin of that name; use another name, or uninstall it"),
        ("knock", "acme 3 has a command of that name; use another name, or uninstall it"),
        ("trie", "it is reserved by the broker or by Python"),
        ("disabled", "it is reserved by the broker or by Python"),
        ("class", "it is reserved by the broker or by Python"),
        ("Door", "use small letters, digits and _, beginning with a letter"),
    ],
)
@pytest.mark.usefixtures("installed")
def test_a_name_that_is_taken_is_refused(tmp_path: Path, name: str, why: str) -> None:
    """Installing it would replace what is there, or hide it; nothing is written."""
    with pytest.raises(AssemblyError) as told:
        write(name, "limiter", tmp_path / "new")

    assert str(told.value) == f"{name!r} can't name a plugin: {why}"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["plugin_family", "plugin_name", "my_plugin_family"])
def test_a_name_may_be_one_of_the_templates(tmp_path: Path, name: str) -> None:
    """What was put in is not replaced again."""
    write(name, "queue", tmp_path / "new")

    assert (tmp_path / "new" / "src" / f"kinmqtt_{name}" / "_plugin.py").is_file()
    assert f'\n{name} = "kinmqtt_{name}:' in (tmp_path / "new" / "pyproject.toml").read_text()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_what_is_interrupted_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """So that the next run finds the directory as it was."""
    parts = list(new_plugin.rendered("door", "queue"))
    written: list[Path] = []
    write_text = Path.write_text

    def breaks(file: Path, text: str, encoding: str) -> int:
        if written:
            raise error
        written.append(file)
        return write_text(file, text, encoding)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", breaks)
        with pytest.raises((KeyboardInterrupt, AssemblyError)):
            write("door", "queue", tmp_path / "new")

    assert written
    assert list(tmp_path.iterdir()) == []
    write("door", "queue", tmp_path / "new")
    assert len([path for path in (tmp_path / "new").rglob("*") if path.is_file()]) == len(parts)


@pytest.mark.parametrize("place", [".", "there", "not/yet"])
def test_an_empty_directory_is_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """Also the one that somebody works in, which stays the same directory; what is not there is made."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "there").mkdir()
    monkeypatch.chdir(work if place != "." else work / "there")
    same = os.stat(".").st_ino

    told = write("door", "event", Path(place))

    assert (Path(place) / "pyproject.toml").is_file()
    assert f"written: {Path(place) / 'pyproject.toml'}" in told
    assert os.stat(".").st_ino == same and Path.cwd().exists()
    assert not [path for path in work.rglob(".*") if path.is_dir()]


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    """With what is in it left alone."""
    (tmp_path / "file").write_text("x")

    with pytest.raises(AssemblyError, match="exists already and is not empty"):
        write("door", "event", tmp_path)
    with pytest.raises(AssemblyError, match="exists already and is not empty"):
        write("door", "event", tmp_path / "file")

    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_name_that_is_too_long_is_refused(tmp_path: Path) -> None:
    """Before any file is named after it; the longest there is can be written."""
    with pytest.raises(AssemblyError, match=r"^'a{20}'… can't name a plugin: it has more than 100 characters$"):
        write("a" * 300, "limiter", tmp_path / "new")
    write("a" * 100, "limiter", tmp_path / f"kinmqtt-{'a' * 100}")

    assert [path.name for path in tmp_path.iterdir()] == [f"kinmqtt-{'a' * 100}"]


def test_a_directory_that_can_not_be_is_told(tmp_path: Path) -> None:
    """In the system's words."""
    with pytest.raises(AssemblyError, match="can't be written: File name too long"):
        write("roof", "limiter", tmp_path / ("a" * 300))
    assert list(tmp_path.iterdir()) == []
