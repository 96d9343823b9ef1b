"""The state of a cluster that its members gossip, and the merge of two copies of it.

Every part of the state only goes forward, so a merge is the least state that contains both copies: associative,
commutative, idempotent. No vector clocks are needed, and it does not matter how often, in which order or through
whom gossip arrives. (Shapiro et al., "Conflict-free Replicated Data Types", 2011; the states of members are those of
Akka's membership service, doc.akka.io, "Cluster Membership Service".)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from attrs import Attribute, evolve, field, frozen

from kinmqtt_spi.services.cluster import MemberState
from kinmqtt_spi.values import NodeIdentity

MOST_MEMBERS: Final = 1_000
"""How many members a cluster may have: so many fit into one message of gossip."""
MOST_REMOVED: Final = 4_096
"""How many uids of removed members are remembered."""
MOST_NAME_BYTES: Final = 255
"""The limit of a node's name and of its host."""
MOST_TERMS_AHEAD: Final = 1 << 20
"""How far a gossiped term may be ahead of what this process knows.

Terms rise by one with each split. One that is far ahead is a mistake; with it the cluster would ask the arbiter for
terms that leave no room for later ones.
"""
MOST_NUMBER: Final = 2**32 - 1
"""The limit of the numbers and versions in the state."""

STATES: Final = (
    MemberState.JOINING,
    MemberState.UP,
    MemberState.LEAVING,
    MemberState.EXITING,
    MemberState.DOWN,
    MemberState.REMOVED,
)
"""The states in the order in which a member passes through them; it may skip some."""
RANK: Final[Mapping[MemberState, int]] = {state: rank for rank, state in enumerate(STATES)}


def later(one: MemberState, other: MemberState) -> MemberState:
    """Return the later one of two states: DOWN wins over LEAVING and EXITING."""
    return one if RANK[one] >= RANK[other] else other


def _check_text(instance: object, attribute: Attribute[str], value: str) -> None:
    if not value or len(value.encode()) > MOST_NAME_BYTES:
        raise ValueError(f"{attribute.name} must have 1 to {MOST_NAME_BYTES} bytes, not {value[:300]!r}")


def _check_port(instance: NodeAddress, attribute: Attribute[int], value: int) -> None:
    if not (value == 0 if instance.is_unix else 1 <= value <= 65_535):
        raise ValueError(f"{attribute.name} must be 1 to 65535, and 0 for a Unix socket, not {value}")


@frozen(slots=True, order=True)
class NodeAddress:
    """Where the other brokers reach a broker. Addresses have an order: the lowest one leads.

    Raises ``ValueError`` for an empty or too long host, and for a port that is none.
    """

    host: str = field(validator=_check_text)
    """A name or an IP address, or the absolute path of a Unix socket."""
    port: int = field(validator=_check_port)
    """0 for a Unix socket."""

    @property
    def is_unix(self) -> bool:
        """Whether this is a Unix socket."""
        return self.host.startswith("/")

    def __str__(self) -> str:
        if self.is_unix:
            return f"unix:{self.host}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _check_node(instance: object, attribute: Attribute[NodeIdentity], value: NodeIdentity) -> None:
    if not value.name or len(value.name.encode()) > MOST_NAME_BYTES:
        raise ValueError(f"a node's name must have 1 to {MOST_NAME_BYTES} bytes, not {value.name[:300]!r}")
    if not 0 <= value.uid < 2**64:
        raise ValueError(f"a uid must have 64 bits, not {value.uid}")


@frozen(slots=True)
class NodeInfo:
    """What a process says of itself when it joins. It never changes.

    Raises ``ValueError`` for an empty or too long name, and for a uid beyond 64 bits.
    """

    node: NodeIdentity = field(validator=_check_node)
    address: NodeAddress
    votes: bool = True
    """``False``: it takes traffic, but does not count in a majority."""

    @property
    def uid(self) -> int:
        """The uid of the process."""
        return self.node.uid

    def __str__(self) -> str:
        return f"{self.node.name} ({self.uid:016x}) at {self.address}"

    @property
    def _key(self) -> tuple[int, str, NodeAddress, bool]:
        return (self.node.uid, self.node.name, self.address, self.votes)

    def merge(self, other: NodeInfo) -> NodeInfo:
        """Return one of both: they differ only if somebody lies, but then all choose the same one."""
        return self if self == other else max(self, other, key=lambda info: info._key)


@frozen(slots=True)
class Record:
    """What the cluster knows of one member."""

    info: NodeInfo
    state: MemberState = MemberState.JOINING
    up_number: int = 0
    """Counts the members in the order in which they became UP: the oldest has the lowest. 0: it was never UP."""
    ready: bool = False
    """The member says that it has restored its sessions, and may become UP."""
    drained: bool = False
    """The leaving member says that its clients are gone and all is answered."""

    def merge(self, other: Record) -> Record:
        """Return the record that contains both."""
        if self == other:
            return self
        return Record(
            self.info.merge(other.info),
            later(self.state, other.state),
            max(self.up_number, other.up_number),
            self.ready or other.ready,
            self.drained or other.drained,
        )


@frozen(slots=True)
class Observation:
    """Whom one member can't reach. Only that member changes it, and counts its changes."""

    version: int
    unreachable: frozenset[int]

    def merge(self, other: Observation) -> Observation:
        """Return the newer one. Two of the same version differ only if somebody lies; then both count."""
        if self.version != other.version:
            return self if self.version > other.version else other
        if self.unreachable == other.unreachable:
            return self
        return Observation(self.version, self.unreachable | other.unreachable)


@frozen(slots=True)
class ClusterState:
    """All that the members must agree on. The mappings are never changed in place."""

    founder: int
    """The uid of the process that formed the cluster: states of two clusters are never merged."""
    records: Mapping[int, Record]
    """The members by uid, without the REMOVED ones."""
    removed: Mapping[int, int] = field(factory=dict)
    """The uids that never come back, each with the number of its removal."""
    observations: Mapping[int, Observation] = field(factory=dict)
    """By the uid of the observer."""
    term: int = 0
    """The last term of the arbiter that a split of this cluster was about: see :mod:`.arbitration`."""

    def merge(self, other: ClusterState) -> ClusterState:
        """Return the state that contains both. Raises ``ValueError`` if they are of two clusters."""
        if self.founder != other.founder:
            raise ValueError(f"the clusters of {self.founder:016x} and {other.founder:016x} can't be merged")
        records = dict(self.records)
        for uid, record in other.records.items():
            mine = records.get(uid)
            records[uid] = record if mine is None else mine.merge(record)
        removed = dict(self.removed)
        for uid, number in other.removed.items():
            removed[uid] = max(number, removed.get(uid, 0))
        observations = dict(self.observations)
        for uid, observation in other.observations.items():
            known = observations.get(uid)
            observations[uid] = observation if known is None else known.merge(observation)
        term = max(self.term, other.term)
        return _normal(evolve(self, records=records, removed=removed, observations=observations, term=term))

    def with_record(self, record: Record) -> ClusterState:
        """Return the state with a new or changed record. A removed uid stays removed."""
        return _normal(evolve(self, records={**self.records, record.info.uid: record}))

    def with_observation(self, observer: int, unreachable: Iterable[int]) -> ClusterState:
        """Return the state with the next version of what ``observer`` can't reach."""
        known = self.observations.get(observer)
        version = min(MOST_NUMBER, 1 if known is None else known.version + 1)
        observations = {**self.observations, observer: Observation(version, frozenset(unreachable))}
        return _normal(evolve(self, observations=observations))

    def without(self, uids: Iterable[int]) -> ClusterState:
        """Return the state with these members REMOVED."""
        number = min(MOST_NUMBER, 1 + max(self.removed.values(), default=0))
        removed = {**self.removed, **dict.fromkeys(uids, number)}
        return _normal(evolve(self, removed=removed))

    def pruned(self) -> ClusterState:
        """Return the state within its bounds: without the oldest removals, and without observations of nobody.

        This is no part of the merge, which would not be associative with it. Members prune after they have merged,
        and equal states become equal ones.
        """
        records, removed = self.records, self.removed
        if len(removed) > MOST_REMOVED:
            newest = sorted(removed, key=lambda uid: (removed[uid], uid), reverse=True)
            removed = {uid: removed[uid] for uid in newest[:MOST_REMOVED]}
        observations = {
            observer: Observation(each.version, frozenset(uid for uid in each.unreachable if uid in records))
            for observer, each in self.observations.items()
            if observer in records
        }
        return evolve(self, removed=removed, observations=observations)


def _normal(state: ClusterState) -> ClusterState:
    """Return the state without anything of removed members: a removal wins over all that is said of the uid."""
    records, removed, observations = state.records, state.removed, state.observations
    if not removed.keys().isdisjoint(records):
        records = {uid: record for uid, record in records.items() if uid not in removed}
    gone = removed.keys()
    if any(observer in gone or not gone.isdisjoint(each.unreachable) for observer, each in observations.items()):
        observations = {
            observer: Observation(each.version, each.unreachable - gone)
            for observer, each in observations.items()
            if observer not in gone
        }
    return evolve(state, records=records, observations=observations)


@frozen(slots=True)
class Gossip:
    """A state, and the members that are known to have seen exactly this one."""

    state: ClusterState
    seen: frozenset[int]

    def merge(self, other: Gossip) -> Gossip:
        """Return the merged state; those have seen it who have seen a copy that was already equal to it."""
        state = self.state.merge(other.state)
        nobody: frozenset[int] = frozenset()
        mine = self.seen if state == self.state else nobody
        theirs = other.seen if state == other.state else nobody
        return Gossip(state, mine | theirs)
