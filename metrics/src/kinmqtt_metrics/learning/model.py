"""What the job is told, and what it finds."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from attrs import frozen

from kinmqtt_metrics.errors import LearningError
from kinmqtt_metrics.number_arguments import WEEK_S, Number

Kind: TypeAlias = Literal["client", "topic"]
KINDS: Final[tuple[Kind, ...]] = ("client", "topic")

EXEMPT: Final = 1_000_000_000
"""Messages a second that nobody reaches: in the rule for all others, what has a rule of its own has this."""
LEAST_COUNT: Final = 0.001
"""The limiter takes none below."""


BOUNDS: Final = {
    "--quantile": ("quantile", Number(0, 1, above=True)),
    "--factor": ("factor", Number(1, 1_000_000)),
    "--over": ("over_s", Number(1, WEEK_S, "seconds", whole=True)),
    "--min-windows": ("min_windows", Number(1, 1_000_000_000, whole=True)),
    "--others": ("others", Number(0, 1, above=True)),
    "--least": ("least", Number(LEAST_COUNT, EXEMPT - 1, "messages a second")),
    "--rules": ("most_rules", Number(0, 100_000, whole=True)),
}
"""By option: what :class:`Options` calls it, and in which bounds it has sense."""


@frozen(slots=True)
class Options:
    """``kinmqtt-metrics rules --help`` says what each means."""

    quantile: float = 0.99
    factor: float = 3.0
    over_s: int = 60
    min_windows: int = 30
    others: float = 0.95
    least: float = 1.0
    """Messages a second."""
    most_rules: int = 100
    """For clients, and as many for topics."""
    topics: bool = True
    shadow: bool = True

    def __attrs_post_init__(self) -> None:
        for option, (name, bounds) in BOUNDS.items():
            problem = bounds.problem(getattr(self, name))
            if problem is not None:
                raise LearningError(f"{option} {problem}")


@frozen(slots=True)
class Usual:
    """What one client published, or what was published to one topic; messages a second."""

    name: str
    rate: float
    """The quantile over the windows in which there was something; with others', the highest that it may have been."""
    most: float
    """Of what is told."""
    windows: int
    told: float | None = None
    """The quantile of what is told, where ``rate`` is higher for what others' sums may hold."""


@frozen(slots=True)
class Rule:
    """A rule of the limiter."""

    kind: Kind
    name: str
    of: str | None
    """The client or topic; nothing for all that have no rule of their own."""
    count: float
    """Messages a second."""
    burst: float
    """So many may come at once."""
    usual: Usual | None = None


@frozen(slots=True)
class Replayed:
    """What a rule would have done to what is in the table."""

    windows: int = 0
    windows_over: int = 0
    messages: int = 0
    excess: int = 0
    """Messages above what the rule lets pass in a window."""
    most: float = 0.0
    """Messages a second, in the window with the most."""
    worst_at_s: float | None = None
    """When the window with the most excess began."""


@frozen(slots=True)
class Summed:
    """Messages of which the sink told the sum alone, as of ``(others)``: whose they were nobody knows."""

    messages: int = 0
    of: int = 0
    """All messages, these included."""
    windows: int = 0
    """That have such."""


@frozen(slots=True)
class Learned:
    """What a job found."""

    rules: tuple[Rule, ...]
    start_s: float
    end_s: float
    windows: int
    nodes: tuple[str, ...]
    seen: dict[Kind, int]
    unknown: dict[Kind, int]
    """Seen in too few windows to say what is usual."""
    replayed: dict[str, Replayed]
    """By name of the rule."""
    summed: Summed = Summed()
