"""A folder of a file system far away, in memory: as an object store has it, and cut off wherever a test asks."""

from __future__ import annotations

from pathlib import Path

from kinmqtt_metrics.pipeline.hadoop import HadoopError, HadoopFolder


class Killed(BaseException):
    """The driver was killed here."""


class MemoryFolder(HadoopFolder):
    """``files`` by their names outlive it, as those of a store outlive a driver."""

    def __init__(self, files: dict[str, bytes], kill_at: int | None = None, refuses: str = "") -> None:
        """``kill_at`` counts the moments before and after each change; names with ``refuses`` can't be renamed."""
        self.url = "memory://tables"
        self.files = files
        self._moments_left = kill_at
        self._refuses = refuses

    def _moment(self) -> None:
        if self._moments_left is not None:
            if self._moments_left == 0:
                raise Killed
            self._moments_left -= 1

    def names(self, folder: str) -> list[str]:
        below = {
            name.removeprefix(f"{folder}/").split("/")[0] for name in self.files if name.startswith(f"{folder}/")
        }
        return sorted(name for name in below if not name.startswith("."))

    def exists(self, name: str) -> bool:
        return name in self.files

    def create(self, name: str, content: bytes) -> bool:
        self._moment()
        if name in self.files:
            return False
        self.files[name] = content
        self._moment()
        return True

    def put(self, source: Path, name: str) -> None:
        self._moment()
        self.files[name] = source.read_bytes()
        self._moment()

    def get(self, name: str, target: Path) -> None:
        target.write_bytes(self.files[name])

    def _rename(self, name: str, target: str) -> None:
        if self._refuses and self._refuses in target:
            raise HadoopError(f"{self.url}: AccessDenied")
        self._moment()
        self.files[target] = self.files[name]
        self._moment()
        del self.files[name]
        self._moment()

    def remove(self, name: str) -> None:
        self._moment()
        for each in [each for each in self.files if each == name or each.startswith(f"{name}/")]:
            del self.files[each]
        self._moment()
