"""The cache of fan-outs, by topic, and its invalidation: a change makes only the topics that it affects outdated.

A change to an exact filter invalidates one topic. The topics that a wildcard filter matches are not searched: the
change is recorded, and a fan-out that is requested again is compared with the changes since it was last validated.
So the message path compares two numbers; if they differ, a few comparisons follow. Large fan-outs are few and are not
compared. A large fan-out that is requested again after a change is updated entry by entry with each further change.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kinmqtt.broker.forwarding.forwarder import Forwarder
from kinmqtt.broker.forwarding.node_link import LinkRoute
from kinmqtt.broker.routing.fanout import Fanout
from kinmqtt.broker.routing.groups import Group, GroupKey
from kinmqtt.broker.routing.incremental_fanout import IncrementalFanout
from kinmqtt.broker.routing.taps import Taps
from kinmqtt.broker.routing.target import merge, sort_targets
from kinmqtt_spi.properties import text_bytes
from kinmqtt_spi.services.subscription import SubscriptionIndex
from kinmqtt_spi.topics import matches as filter_matches
from kinmqtt_spi.values import Subscription

if TYPE_CHECKING:
    from kinmqtt.broker.runtime import Runtime
    from kinmqtt.broker.session.session import Session

CACHED_TOPICS: Final = 100_000
"""The most cached topics."""

CACHED_TARGETS: Final = 200_000
"""The most targets of all cached topics, which includes the size of their names; half of it is for large fan-outs."""

TARGET_BYTES: Final = 100
"""The approximate size of a cached target; in a large fan-out it is three times as much."""

LARGE: Final = 1000
"""A fan-out with this many targets is updated entry by entry, once its topic is requested again."""

MAX_REQUESTED_ONCE: Final = 4
"""The most large fan-outs cached for topics requested only once: such a topic may never be requested again."""

REQUESTED_ONCE_TARGETS: Final = CACHED_TARGETS // 8
"""The most targets of those together, except that one may have any size."""

INCREMENTAL_TARGETS: Final = CACHED_TARGETS * 3 // 8
"""The most targets of all incremental fan-outs, except that one may have any size."""

KNOWN_TOPICS: Final = 256
"""The most topics with large fan-outs that are known to have been requested before."""

MAX_CHANGES: Final = 1024
"""The most recorded changes; a fan-out not requested for longer is rebuilt."""

MAX_COMPARISONS: Final = 32
"""The most recorded changes that a small fan-out is compared with; beyond that a rebuild is cheaper."""

DROPPED_AFTER_SWEEPS: Final = 10
"""A fan-out not requested since a change this many rounds of :meth:`Fanouts.sweep` ago is dropped."""

SWEPT_AT_ONCE: Final = 1000
"""The most fan-outs that one round drops."""


class Change:
    """A recorded change that may affect many topics: to a wildcard filter or to a session."""

    __slots__ = ("client_id", "levels")

    def __init__(self, levels: list[str] | None, client_id: str) -> None:
        self.levels = levels
        """The levels of the filter; ``None`` if every fan-out with the session of ``client_id`` is affected."""
        self.client_id = client_id


class Fanouts:
    """Finds the fan-out of a topic, in the cache or from the index."""

    __slots__ = (
        "_base",
        "_cached",
        "_changes",
        "_forwarder",
        "_groups",
        "_incremental",
        "_index",
        "_known",
        "_large",
        "_marks",
        "_requested_once",
        "_runtime",
        "_session_of",
        "_weight",
        "generation",
        "is_busy",
        "moved_groups",
        "taps",
    )

    def __init__(
        self,
        runtime: Runtime,
        index: SubscriptionIndex,
        session_of: Callable[[str], Session | None],
        groups: dict[GroupKey, Group],
        forwarder: Forwarder,
        large: int = LARGE,
    ) -> None:
        """``groups`` has all shared subscriptions, those of other nodes included."""
        self._runtime = runtime
        self._forwarder = forwarder
        self._index = index
        self._session_of = session_of
        self._groups = groups
        self.taps = Taps(runtime)
        self.moved_groups: dict[GroupKey, Group] = {}
        """The shared subscriptions with members that have moved to another node a while ago."""
        self._large = large
        self._cached: OrderedDict[str, Fanout] = OrderedDict()
        """By topic, in the order of last validation."""
        self._weight = 0
        self._incremental: dict[str, IncrementalFanout] = {}
        self._requested_once: deque[Fanout] = deque()
        """Large fan-outs of topics requested once, the latest last; some may be retired."""
        self._known: dict[str, None] = {}
        """Topics whose large fan-outs were built before, the latest last."""
        self._changes: list[Change] = []
        self._base = 0
        """The generation before the first recorded change."""
        self.generation = 0
        """Counts the changes; a fan-out with this generation is current."""
        self.is_busy = False
        """Whether a message is being delivered in slices: later messages of its topic must not overtake it."""
        self._marks: deque[int] = deque()

    def get(self, topic: str) -> Fanout:
        """Return the current fan-out of a topic."""
        fanout = self._cached.get(topic)
        if fanout is not None:
            if fanout.generation == self.generation or self.renew(fanout):
                return fanout
            self._drop(topic)
        incremental = self._incremental.get(topic)
        if incremental is not None:
            if len(incremental) >= self._large // 2:
                return self._cache(topic, self._of_incremental(incremental, self._links_for(topic)), 0)
            del self._incremental[topic]
        return self._build(topic)

    def renew(self, fanout: Fanout) -> bool:
        """Make a fan-out current again that no change has affected; ``False`` if it is outdated."""
        if not self._is_unaffected(fanout):
            return False
        fanout.generation = self.generation
        if self._cached.get(fanout.topic) is fanout:
            self._cached.move_to_end(fanout.topic)
        return True

    def is_current(self, fanout: Fanout) -> bool:
        """Return whether a fan-out is current."""
        return fanout.generation == self.generation or self._is_unaffected(fanout)

    def subscribed(self, client_id: str, subscription: Subscription) -> None:
        """Apply a new or replaced subscription of a client; not a shared one."""
        for incremental in self._invalidate(subscription.filter, client_id):
            incremental.subscribed(client_id, subscription)

    def unsubscribed(self, client_id: str, filter: str) -> None:
        """Apply the removal of a client's subscription; not of a shared one."""
        for incremental in self._invalidate(filter, client_id):
            incremental.unsubscribed(client_id, filter)

    def group_began(self, key: GroupKey, group: Group) -> None:
        """Add a shared subscription that has its first member."""
        for incremental in self._invalidate(key[1], ""):
            incremental.group_began(key, group)

    def group_ended(self, key: GroupKey) -> None:
        """Remove a shared subscription that has lost its last member."""
        for incremental in self._invalidate(key[1], ""):
            incremental.group_ended(key)

    def filter_changed(self, filter: str) -> None:
        """Apply a change of other nodes' routes, or of taps."""
        self._invalidate(filter, "")

    def _of_incremental(self, incremental: IncrementalFanout, links: tuple[LinkRoute, ...] | None) -> Fanout:
        return incremental.fanout(self.generation, links, self.taps.for_topic(incremental.topic))

    def _links_for(self, topic: str) -> tuple[LinkRoute, ...] | None:
        """Return the other nodes with subscribers of a topic; ``None`` if there are none."""
        return self._forwarder.links_for(topic) or None

    def changed(self, client_id: str) -> None:
        """Apply a change of a session's packets or receive rights, or its end."""
        self._record(Change(None, client_id))
        for topic, incremental in self._incremental.items():
            if incremental.changed(client_id):
                self._drop(topic)

    def clear(self) -> None:
        """Invalidate all fan-outs."""
        self._changes.clear()
        self.generation += 1
        self._base = self.generation
        for topic in self._incremental:
            self._drop(topic)
        self._incremental.clear()

    def sweep(self) -> None:
        """Drop fan-outs not requested since a change some rounds ago: they refer to sessions that may have ended."""
        marks = self._marks
        marks.append(self.generation)
        if len(marks) <= DROPPED_AFTER_SWEEPS:
            return
        oldest = marks.popleft()
        cached = self._cached
        for _ in range(SWEPT_AT_ONCE):
            if not cached:
                return
            topic = next(iter(cached))
            if cached[topic].generation >= oldest:
                return
            self._drop(topic)

    def __len__(self) -> int:
        """Return the number of cached topics."""
        return len(self._cached)

    @property
    def cached(self) -> dict[str, Fanout]:
        """The cached fan-outs, by topic; some may be outdated."""
        return dict(self._cached)

    def _build(self, topic: str) -> Fanout:
        """Build a fan-out from the index, and cache it."""
        matches = self._index.match(topic)
        groups = {key: self._groups[key] for key in matches.groups}
        for key, group in self.moved_groups.items():
            if filter_matches(key[1], topic):
                groups[key] = group
        links: tuple[LinkRoute, ...] | None = None
        if not self._forwarder.is_alone:
            links = self._links_for(topic)
            for key in self._forwarder.routes.groups_for(topic):
                if key in self._groups:  # Not of a node that is gone and whose routes are kept for its sessions.
                    groups[key] = self._groups[key]
        runtime = self._runtime
        hooks = runtime.hooks
        watched = runtime.notifies_delivered or hooks.dropped.active or hooks.delivering.for_topic(topic) is not None
        targets = merge(matches.subscribers, self._session_of)
        count = len(targets)
        is_large = count >= self._large
        if is_large:
            runtime.slices.is_heavy = True
        if is_large and self._was_built_before(topic):
            incremental = IncrementalFanout(runtime, self._session_of, topic, targets, groups, watched)
            self._make_room_for(incremental)
            return self._cache(topic, self._of_incremental(incremental, links), 0)
        ordered = sort_targets(runtime, topic, targets, watched)
        fanout = Fanout(
            runtime, self.generation, topic, ordered, tuple(groups.values()), links, self.taps.for_topic(topic)
        )
        if is_large:
            return self._cache_once(topic, fanout)
        # A long topic takes as much memory as many targets.
        return self._cache(topic, fanout, count + text_bytes(topic) // TARGET_BYTES)

    def _was_built_before(self, topic: str) -> bool:
        """Return whether a large fan-out of this topic was built before, and remember that one is built now."""
        known = self._known
        is_known = topic in known
        known.pop(topic, None)
        known[topic] = None
        if len(known) > KNOWN_TOPICS:
            del known[next(iter(known))]
        return is_known

    def _cache_once(self, topic: str, fanout: Fanout) -> Fanout:
        """Cache a large fan-out whose topic is requested for the first time; only a few of these are cached."""
        once = self._requested_once
        once.append(fanout)
        left = REQUESTED_ONCE_TARGETS - sum(len(each.targets) for each in once)
        while len(once) > MAX_REQUESTED_ONCE or (left < 0 and len(once) > 1):
            oldest = once.popleft()
            left += len(oldest.targets)
            if self._cached.get(oldest.topic) is oldest:
                self._drop(oldest.topic)
        return self._cache(topic, fanout, 0)

    def _cache(self, topic: str, fanout: Fanout, weight: int) -> Fanout:
        cached = self._cached
        while cached and (len(cached) >= CACHED_TOPICS or self._weight + weight > CACHED_TARGETS // 2):
            self._drop(next(iter(cached)))
        fanout.weight = weight
        self._weight += weight
        cached[topic] = fanout
        return fanout

    def _make_room_for(self, incremental: IncrementalFanout) -> None:
        """Add an incremental fan-out, and drop the oldest while all together are too large."""
        all_incremental = self._incremental
        all_incremental.pop(incremental.topic, None)
        left = INCREMENTAL_TARGETS - len(incremental) - sum(map(len, all_incremental.values()))
        while all_incremental and left < 0:
            topic = next(iter(all_incremental))
            left += len(all_incremental.pop(topic))
            self._drop(topic)
        all_incremental[incremental.topic] = incremental

    def _drop(self, topic: str) -> None:
        fanout = self._cached.pop(topic, None)
        if fanout is not None:
            self._weight -= fanout.weight
            # Connections may refer to it as long as they last.
            fanout.retire()

    def _invalidate(self, filter: str, client_id: str) -> list[IncrementalFanout]:
        """Invalidate the fan-outs that a filter matches; returns the incremental ones, which must be updated."""
        if "+" not in filter and "#" not in filter:
            self._drop(filter)
            incremental = self._incremental.get(filter)
            return [] if incremental is None else [incremental]
        levels = filter.split("/")
        self._record(Change(levels, client_id))
        if not self._incremental:
            return []
        affected = [incremental for incremental in self._incremental.values() if _matches(levels, incremental.levels)]
        for incremental in affected:
            self._drop(incremental.topic)
        return affected

    def _record(self, change: Change) -> None:
        changes = self._changes
        if len(changes) >= MAX_CHANGES:
            del changes[: MAX_CHANGES // 2]
            self._base += MAX_CHANGES // 2
        changes.append(change)
        self.generation += 1

    def _is_unaffected(self, fanout: Fanout) -> bool:
        """Return whether the changes since a fan-out was last current don't affect it."""
        if fanout.generation < 0:
            return False
        if fanout.topic in self._incremental:
            return True  # It is updated with each change.
        # To search a session among very many takes longer than to rebuild the fan-out.
        return len(fanout.targets) < self._large and self._no_change_matches(fanout)

    def _no_change_matches(self, fanout: Fanout) -> bool:
        """Return whether no change recorded since a fan-out was last current affects it."""
        since = fanout.generation
        number = since - self._base
        if number < 0:
            return False
        comparisons = MAX_COMPARISONS + len(fanout.targets)
        changes = self._changes
        levels: list[str] | None = None
        while number < len(changes):
            change = changes[number]
            number += 1
            if change.levels is None:
                comparisons -= 1 + len(fanout.targets) // 8
                if comparisons < 0 or fanout.has_client(change.client_id):
                    return False
                continue
            comparisons -= 1
            if levels is None:
                levels = fanout.topic.split("/")
            if comparisons < 0 or _matches(change.levels, levels):
                return False
        return True


def _matches(wanted: list[str], levels: list[str]) -> bool:
    """Return whether a filter matches a topic, both split into levels (section 4.7)."""
    count = len(levels)
    for number, level in enumerate(wanted):
        if level == "#":
            break  # It also matches the parent level itself.
        if number == count or (level != "+" and level != levels[number]):
            return False
    else:
        if len(wanted) != count:
            return False
    # MQTT-4.7.2-1: a wildcard in the first level does not match a topic that begins with "$".
    return not (levels[0][:1] == "$" and wanted[0] in ("+", "#"))
