"""The fan-outs that are remembered, and what makes them stale: a change concerns the topics that it touches alone.

A change to an exact filter is a look-up of one topic. Which of very many topics a wildcard matches is not looked for:
the change is noted, and a fan-out that is wanted again is compared with what was noted since it was last found fresh.
So the message path compares two numbers, and whoever finds them differ pays for a few comparisons. Large fan-outs are
few; they are not compared. One whose topic is wanted again after a change is told of each further change at once, and
takes it over entry by entry.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kinmqtt.broker.routing.fanout import Fanout
from kinmqtt.broker.routing.groups import Group, GroupKey
from kinmqtt.broker.routing.roster import Roster
from kinmqtt.broker.routing.target import merge, sort_targets
from kinmqtt_spi.properties import text_bytes
from kinmqtt_spi.services.subscription import SubscriptionIndex
from kinmqtt_spi.values import Subscription

if TYPE_CHECKING:
    from kinmqtt.broker.runtime import Runtime
    from kinmqtt.broker.session.session import Session

CACHED_TOPICS: Final = 100_000
CACHED_TARGETS: Final = 200_000
"""Of all cached topics together, their names counted with them; half of them is for large fan-outs."""

TARGET_BYTES: Final = 100
"""What a cached target takes, about; one of a large fan-out takes three times as much."""

LARGE: Final = 1000
"""Targets from which on a fan-out is kept up to date entry by entry, where its topic is wanted more than once."""

WANTED_ONCE: Final = 4
"""Large fan-outs that are remembered of topics that were wanted once: such a topic may never be wanted again."""

TARGETS_WANTED_ONCE: Final = CACHED_TARGETS // 8
"""Of those together; one may be as large as it is."""

ROSTER_TARGETS: Final = CACHED_TARGETS * 3 // 8
"""Of those that are kept up to date, together; one may be as large as it is."""

KNOWN_TOPICS: Final = 256
"""Topics of large fan-outs of which it is known that they were wanted before."""

NOTED: Final = 1024
"""Changes that are noted; a fan-out that was not wanted for longer is put together anew."""

LOOKS: Final = 32
"""Noted changes that a small fan-out is compared with; after more it is cheaper to put it together anew."""

FORGOTTEN_AFTER: Final = 10
"""Rounds of :meth:`Fanouts.sweep` after which a fan-out is dropped that nobody wanted since something changed."""

SWEPT_AT_ONCE: Final = 1000


class Change:
    """Something that may concern topics which are not looked for: a wildcard filter, or a session."""

    __slots__ = ("client_id", "levels")

    def __init__(self, levels: list[str] | None, client_id: str) -> None:
        self.levels = levels
        """The filter's; ``None`` where all that holds the session of ``client_id`` is concerned."""
        self.client_id = client_id


class Fanouts:
    """Finds the fan-out of a topic."""

    __slots__ = (
        "_base",
        "_cached",
        "_changes",
        "_groups",
        "_index",
        "_known",
        "_large",
        "_marks",
        "_once",
        "_rosters",
        "_runtime",
        "_session_of",
        "_weight",
        "generation",
        "is_busy",
    )

    def __init__(
        self,
        runtime: Runtime,
        index: SubscriptionIndex,
        session_of: Callable[[str], Session | None],
        groups: dict[GroupKey, Group],
        large: int = LARGE,
    ) -> None:
        """``groups`` are the shared subscriptions that there are."""
        self._runtime = runtime
        self._index = index
        self._session_of = session_of
        self._groups = groups
        self._large = large
        self._cached: OrderedDict[str, Fanout] = OrderedDict()
        """In the order in which they were last found fresh."""
        self._weight = 0
        self._rosters: dict[str, Roster] = {}
        self._once: deque[Fanout] = deque()
        """Large fan-outs of topics that were wanted once, the latest last; some may be retired."""
        self._known: dict[str, None] = {}
        """Topics of large fan-outs that were put together before, the latest last."""
        self._changes: list[Change] = []
        self._base = 0
        """The generation before the first of the changes that are noted."""
        self.generation = 0
        """Counts the changes. A fan-out whose own number is this one is fresh."""
        self.is_busy = False
        """Whether a message is on its way to very many: what comes to the same topic must not overtake it."""
        self._marks: deque[int] = deque()

    def get(self, topic: str) -> Fanout:
        """Everybody who gets the messages of a topic, as of now."""
        fanout = self._cached.get(topic)
        if fanout is not None:
            if fanout.generation == self.generation:
                return fanout
            if self._is_found_fresh(fanout):
                fanout.generation = self.generation
                self._cached.move_to_end(topic)
                return fanout
            self._drop(topic)
        roster = self._rosters.get(topic)
        if roster is not None:
            if len(roster) >= self._large // 2:
                return self._remember(topic, roster.fanout(self.generation), 0)
            del self._rosters[topic]
        return self._made(topic)

    def is_fresh(self, fanout: Fanout) -> bool:
        """Whether nothing has changed of a fan-out."""
        return fanout.generation == self.generation or self._is_found_fresh(fanout)

    def subscribed(self, client_id: str, subscription: Subscription) -> None:
        """A client has made, or replaced, a subscription of its own."""
        for roster in self._concerned(subscription.filter, client_id):
            roster.subscribed(client_id, subscription)

    def unsubscribed(self, client_id: str, filter: str) -> None:
        """A client has given up a subscription of its own."""
        for roster in self._concerned(filter, client_id):
            roster.unsubscribed(client_id, filter)

    def group_began(self, key: GroupKey, group: Group) -> None:
        """A shared subscription has its first member."""
        for roster in self._concerned(key[1], ""):
            roster.group_began(key, group)

    def group_ended(self, key: GroupKey) -> None:
        """A shared subscription has lost its last member."""
        for roster in self._concerned(key[1], ""):
            roster.group_ended(key)

    def changed(self, client_id: str) -> None:
        """What a session can take, or may receive, is another; or there is none any more."""
        self._note(Change(None, client_id))
        for topic, roster in self._rosters.items():
            if roster.changed(client_id):
                self._drop(topic)

    def clear(self) -> None:
        """All may be wrong."""
        self._changes.clear()
        self.generation += 1
        self._base = self.generation
        for topic in self._rosters:
            self._drop(topic)
        self._rosters.clear()

    def sweep(self) -> None:
        """Drop what nobody wanted since a change that is some rounds old: it holds sessions that may have ended."""
        marks = self._marks
        marks.append(self.generation)
        if len(marks) <= FORGOTTEN_AFTER:
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
        """How many topics are remembered."""
        return len(self._cached)

    @property
    def remembered(self) -> dict[str, Fanout]:
        """The fan-outs that are remembered, by topic; some may be stale."""
        return dict(self._cached)

    def _made(self, topic: str) -> Fanout:
        """Ask the index."""
        matches = self._index.match(topic)
        groups = {key: self._groups[key] for key in matches.groups}
        runtime = self._runtime
        hooks = runtime.hooks
        watched = runtime.notifies_delivered or hooks.dropped.active or hooks.delivering.for_topic(topic) is not None
        targets = merge(matches.subscribers, self._session_of)
        count = len(targets)
        is_large = count >= self._large
        if is_large:
            runtime.slices.is_heavy = True
        if is_large and self._is_known(topic):
            roster = Roster(runtime, self._session_of, topic, targets, groups, watched)
            self._make_room_for(roster)
            return self._remember(topic, roster.fanout(self.generation), 0)
        fanout = Fanout(
            runtime, self.generation, topic, sort_targets(runtime, topic, targets, watched), tuple(groups.values())
        )
        if is_large:
            return self._remember_once(topic, fanout)
        # A long topic takes as much as many targets.
        return self._remember(topic, fanout, count + text_bytes(topic) // TARGET_BYTES)

    def _is_known(self, topic: str) -> bool:
        """Whether a large fan-out of this topic was put together before; from now on it was."""
        known = self._known
        is_known = topic in known
        known.pop(topic, None)
        known[topic] = None
        if len(known) > KNOWN_TOPICS:
            del known[next(iter(known))]
        return is_known

    def _remember_once(self, topic: str, fanout: Fanout) -> Fanout:
        """Remember a large fan-out of which nobody knows whether its topic is wanted again; few of them."""
        once = self._once
        once.append(fanout)
        left = TARGETS_WANTED_ONCE - sum(len(each.targets) for each in once)
        while len(once) > WANTED_ONCE or (left < 0 and len(once) > 1):
            oldest = once.popleft()
            left += len(oldest.targets)
            if self._cached.get(oldest.topic) is oldest:
                self._drop(oldest.topic)
        return self._remember(topic, fanout, 0)

    def _remember(self, topic: str, fanout: Fanout, weight: int) -> Fanout:
        cached = self._cached
        while cached and (len(cached) >= CACHED_TOPICS or self._weight + weight > CACHED_TARGETS // 2):
            self._drop(next(iter(cached)))
        fanout.weight = weight
        self._weight += weight
        cached[topic] = fanout
        return fanout

    def _make_room_for(self, roster: Roster) -> None:
        """Where large fan-outs are too much together the oldest give way; one may be as large as it is."""
        rosters = self._rosters
        rosters.pop(roster.topic, None)
        left = ROSTER_TARGETS - len(roster) - sum(map(len, rosters.values()))
        while rosters and left < 0:
            topic = next(iter(rosters))
            left += len(rosters.pop(topic))
            self._drop(topic)
        rosters[roster.topic] = roster

    def _drop(self, topic: str) -> None:
        fanout = self._cached.pop(topic, None)
        if fanout is not None:
            self._weight -= fanout.weight
            # Connections may remember it for as long as they last.
            fanout.retire()

    def _concerned(self, filter: str, client_id: str) -> list[Roster]:
        """Make stale what a filter matches; answers the large fan-outs among them, which take the change over."""
        if "+" not in filter and "#" not in filter:
            self._drop(filter)
            roster = self._rosters.get(filter)
            return [] if roster is None else [roster]
        levels = filter.split("/")
        self._note(Change(levels, client_id))
        if not self._rosters:
            return []
        concerned = [roster for roster in self._rosters.values() if _matches(levels, roster.levels)]
        for roster in concerned:
            self._drop(roster.topic)
        return concerned

    def _note(self, change: Change) -> None:
        changes = self._changes
        if len(changes) >= NOTED:
            del changes[: NOTED // 2]
            self._base += NOTED // 2
        changes.append(change)
        self.generation += 1

    def _is_found_fresh(self, fanout: Fanout) -> bool:
        """Whether no change concerns a fan-out since it was fresh last, though there were some."""
        if fanout.generation < 0:
            return False
        if fanout.topic in self._rosters:
            return True  # It was told of each change.
        # To look for a session among very many takes longer than is saved: such a fan-out is put together anew.
        return len(fanout.targets) < self._large and self._still_holds(fanout)

    def _still_holds(self, fanout: Fanout) -> bool:
        """Whether nothing that was noted since a fan-out was fresh concerns it."""
        since = fanout.generation
        number = since - self._base
        if number < 0:
            return False
        looks = LOOKS + len(fanout.targets)
        changes = self._changes
        levels: list[str] | None = None
        while number < len(changes):
            change = changes[number]
            number += 1
            if change.levels is None:
                looks -= 1 + len(fanout.targets) // 8
                if looks < 0 or fanout.holds(change.client_id):
                    return False
                continue
            looks -= 1
            if levels is None:
                levels = fanout.topic.split("/")
            if looks < 0 or _matches(change.levels, levels):
                return False
        return True


def _matches(wanted: list[str], levels: list[str]) -> bool:
    """Whether a filter matches a topic, both cut into levels (section 4.7)."""
    count = len(levels)
    for number, level in enumerate(wanted):
        if level == "#":
            break  # Also for the parent itself: nothing has to be left of the topic.
        if number == count or (level != "+" and level != levels[number]):
            return False
    else:
        if len(wanted) != count:
            return False
    # MQTT-4.7.2-1: no wildcard in the first place matches a topic with "$".
    return not (levels[0][:1] == "$" and wanted[0] in ("+", "#"))
