"""What a coordinator returns: the driver carries the effects out, in their order."""

from __future__ import annotations

from typing import TypeAlias

from attrs import frozen

from kinmqtt_akka_like_cluster.pure.downing import Decision
from kinmqtt_akka_like_cluster.pure.gossip import NodeAddress
from kinmqtt_akka_like_cluster.pure.messages import Message
from kinmqtt_spi.services.cluster import Member


@frozen(slots=True)
class Send:
    """Send a message on a control connection with a member. What can't be sent is dropped: it is repeated."""

    uid: int
    message: Message
    reply: bool = False
    """Use the connection that the other node dialled, which may be that of a process that is no member.

    If there is none, a reply goes out as any other message: on the connection that this node dials.
    """


@frozen(slots=True)
class SendTo:
    """Send a message on a control connection with whatever process has this address."""

    address: NodeAddress
    message: Message


@frozen(slots=True)
class MemberChanged:
    """A member's state, or whether it can be reached, has changed; this node's own state too.

    A member that is DOWN or REMOVED counts as unreachable.
    """

    member: Member


@frozen(slots=True)
class Joined:
    """This node is a member, JOINING. The members follow, each with its own effect."""


@frozen(slots=True)
class JoinRefused:
    """A member refuses this node, which asks again after 10 seconds. The same reason is repeated once a minute."""

    reason: str


@frozen(slots=True)
class WaitingForSeeds:
    """No seed has let this node join yet. Repeated every 30 seconds."""

    seeds: tuple[NodeAddress, ...]
    waited_s: float
    not_yet: int
    """How many seeds have answered that they are no members themselves."""


@frozen(slots=True)
class AskArbiter:
    """Ask the arbiter that decides splits for a term, and report the answer by ``arbiter_decided``.

    If it could not be asked, report nothing: it is asked again.
    """

    side: int
    """The number of 64 bits in whose name to ask: the same for all members of one side."""
    term: int
    """The term to ask for: the same for all sides of a split, and the next one after the last split's."""


@frozen(slots=True)
class AskToForm:
    """Ask the arbiter whether this process may form a cluster alone, and report the answer by ``may_form``.

    If it could not be asked, report nothing: it is asked again.
    """


@frozen(slots=True)
class Downing:
    """Members were marked DOWN here; for the log."""

    decision: Decision | None
    """The decision of the strategy; ``None`` if something else than a strategy was the reason."""
    uids: tuple[int, ...]
    reason: str


@frozen(slots=True)
class Downed:
    """This process is DOWN or REMOVED. It must drop its clients, and may return as a new process only.

    The last effect of a coordinator: from now on all events are ignored.
    """

    reason: str


@frozen(slots=True)
class LeaveCompleted:
    """All members know that this process has left, and it may end. The last effect of a coordinator."""


Effect: TypeAlias = (
    Send
    | SendTo
    | MemberChanged
    | Joined
    | JoinRefused
    | WaitingForSeeds
    | AskArbiter
    | AskToForm
    | Downing
    | Downed
    | LeaveCompleted
)
