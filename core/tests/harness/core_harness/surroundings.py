"""What tests of the command line arrange: installed plugins that are not installed, and a watch on listeners."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from spi_harness.processes import environment

_WATCH = """
import os, sys
def _watch(event, arguments):
    if event == "socket.bind" and isinstance(arguments[1], tuple):
        with open(os.environ["SOCKET_WATCH"], "a") as file:
            file.write(f"{arguments[1][1]}\\n")
sys.addaudithook(_watch)
"""


class Surroundings:
    """A folder on the Python path of the processes that a test starts, and their environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "site"
        self.folder.mkdir()
        self._bound = folder / "bound"
        (self.folder / "sitecustomize.py").write_text(_WATCH)

    @property
    def environment(self) -> dict[str, str]:
        """The environment with this folder's plugins and the watch on listeners."""
        path = os.pathsep.join(filter(None, [str(self.folder), os.environ.get("PYTHONPATH")]))
        return environment(PYTHONPATH=path, SOCKET_WATCH=str(self._bound))

    @property
    def bound_ports(self) -> list[int]:
        """Every TCP port that a process has tried to listen on."""
        return [int(line) for line in self._bound.read_text().split()] if self._bound.exists() else []

    def install(
        self, distribution: str, source: str, plugins: Mapping[str, str], group: str = "kinmqtt.plugins"
    ) -> None:
        """Make a distribution by hand: one module of its name, and entry points of a group by name."""
        (self.folder / f"{distribution}.py").write_text(source)
        info = self.folder / f"{distribution}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        lines = [f"{name} = {target}" for name, target in plugins.items()]
        (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
