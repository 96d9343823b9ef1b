"""``kinmqtt run`` with one promise broken: what the checker must catch."""

from __future__ import annotations

import sys
from typing import Any

from kinmqtt.plugins.builtin.embedded import records, stores
from kinmqtt_spi.services.queue import InboundOpen, Release


def without(*sorts: type[Any]) -> None:
    """The log leaves writes of some sorts out."""
    pack = records.pack

    def forgetful(group: records.Group) -> bytes:
        group.queue = [write for write in group.queue if not isinstance(write, sorts)]
        return pack(group)

    stores.pack = forgetful  # type: ignore[attr-defined]


def acknowledge_before_commit() -> None:
    """Groups reach the log a little later than their acknowledgements the clients."""
    commit = stores.Ledger.commit

    def hasty(self: stores.Ledger) -> Any:
        append, held = self.append, self.__dict__.setdefault("held", [])
        if append is None or getattr(append, "hasty", False):
            return commit(self)

        def keep(data: bytes) -> None:
            held.append(data)
            if len(held) >= 40:
                for each in held:
                    append(each)
                held.clear()

        keep.hasty = True  # type: ignore[attr-defined]
        self.append = keep
        return commit(self)

    stores.Ledger.commit = hasty  # type: ignore[method-assign]


MUTATIONS = {
    "none": lambda: None,
    "acknowledge-before-commit": acknowledge_before_commit,
    "forget-the-pubrel-stage": lambda: without(Release),
    "drop-the-dedup-set": lambda: without(InboundOpen),
}

if __name__ == "__main__":
    MUTATIONS[sys.argv.pop(1)]()
    from kinmqtt.__main__ import main

    sys.exit(main(sys.argv[1:]))
