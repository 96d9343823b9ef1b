"""What is published and not read yet: a node is silent only where nothing of it waits to be read."""

from __future__ import annotations

import json
from pathlib import Path

from kinmqtt_metrics.source.folder import Folder
from kinmqtt_metrics.source.offsets import Taken


class Backlog:
    """Looks at Spark's checkpoint and at the landing folder."""

    def __init__(self, checkpoint: Path, landing: Path) -> None:
        self._offsets = checkpoint / "offsets"
        self._folder = Folder(str(landing))

    def _taken(self, batch: int) -> Taken:
        """What had been taken when a batch was planned; raises ``OSError`` and ``ValueError``."""
        return Taken.from_json(json.loads((self._offsets / str(batch)).read_text("utf-8").splitlines()[-1]))

    def is_empty(self, batch: int) -> bool:
        """Whether nothing is published that was not read up to this batch."""
        taken = self._taken(batch)
        return all(key in taken for key in self._folder.paths())
