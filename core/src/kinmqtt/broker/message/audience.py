"""Who on this node is to get a message, where that is not everybody who has subscribed."""

from __future__ import annotations

from mypy_extensions import mypyc_attr


@mypyc_attr(acyclic=True)
class Audience:
    """Which subscribers of this node a message is for; several messages may share one."""

    __slots__ = ("groups", "is_forwarded", "without")

    def __init__(
        self,
        groups: frozenset[tuple[str, str]] | None,
        without: frozenset[str] | None = None,
        is_forwarded: bool = False,
    ) -> None:
        self.groups = groups
        """If not ``None``: other nodes have it already, and of the shared subscriptions, by name and filter, only
        these are served here."""
        self.without = without
        """The clients whose sessions have it already, by another way; ``None`` if there are none."""
        self.is_forwarded = is_forwarded
        """Whether another node took it from its publisher, and has it in its outboxes."""
