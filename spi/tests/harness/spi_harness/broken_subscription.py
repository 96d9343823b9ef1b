"""Subscription indexes that break one promise each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from attrs import evolve

from kinmqtt_spi.errors import SubscriptionRefused
from kinmqtt_spi.memory.subscription import NaiveIndex
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.subscription import Matches, Subscriber, SubscriptionIndex
from kinmqtt_spi.testing.subscription import SubscriptionIndexContract
from kinmqtt_spi.topics import matches
from kinmqtt_spi.values import Subscription


class _Broken(SubscriptionIndexContract):
    """``double`` is the index."""

    double: type[SubscriptionIndex]

    @pytest.fixture
    def subscription_index(self) -> SubscriptionIndex:
        return self.double()


class _Matching(NaiveIndex):
    """Matches by ``fits``."""

    def fits(self, filter: str, topic: str) -> bool:
        return matches(filter, topic)

    def match(self, topic: str) -> Matches:
        plain = []
        groups: dict[tuple[str, str], tuple[Subscriber, ...]] = {}
        for (client_id, filter, group), subscription in self._subscriptions.items():
            if not self.fits(filter, topic):
                continue
            if group is None:
                plain.append(Subscriber(client_id, subscription))
            else:
                key = (group, filter)
                groups[key] = (*groups.get(key, ()), Subscriber(client_id, subscription))
        return Matches(tuple(plain), groups)


class TestSUBSCRIPTION_01_EverythingIsNew(_Broken):
    class double(NaiveIndex):
        def add(self, client_id: str, subscription: Subscription) -> bool:
            super().add(client_id, subscription)
            return True


class TestSUBSCRIPTION_02_RemovesWhatIsNotThere(_Broken):
    class double(NaiveIndex):
        def remove(self, client_id: str, filter: str, share_group: str | None = None) -> bool:
            super().remove(client_id, filter, share_group)
            return True


class TestSUBSCRIPTION_02_IgnoresTheGroup(_Broken):
    class double(NaiveIndex):
        def remove(self, client_id: str, filter: str, share_group: str | None = None) -> bool:
            return super().remove(client_id, filter)


class TestSUBSCRIPTION_03_KeepsTheFirst(_Broken):
    class double(NaiveIndex):
        def add(self, client_id: str, subscription: Subscription) -> bool:
            known = (client_id, subscription.filter, subscription.share_group) in self._subscriptions
            return False if known else super().add(client_id, subscription)


class TestSUBSCRIPTION_03_ForgetsOptions(_Broken):
    class double(NaiveIndex):
        def add(self, client_id: str, subscription: Subscription) -> bool:
            return super().add(client_id, evolve(subscription, identifier=None))


class TestSUBSCRIPTION_04_RemovesEverybody(_Broken):
    class double(NaiveIndex):
        def remove(self, client_id: str, filter: str, share_group: str | None = None) -> bool:
            if not super().remove(client_id, filter, share_group):
                return False
            self._subscriptions = {key: each for key, each in self._subscriptions.items() if key[1] != filter}
            return True


class TestSUBSCRIPTION_05_DropsEmptyLevels(_Broken):
    class double(_Matching):
        def fits(self, filter: str, topic: str) -> bool:
            return super().fits(filter.strip("/"), topic.strip("/"))


class TestSUBSCRIPTION_05_IgnoresCase(_Broken):
    class double(_Matching):
        def fits(self, filter: str, topic: str) -> bool:
            return super().fits(filter.casefold(), topic.casefold())


class TestSUBSCRIPTION_06_APlusIsNotEmpty(_Broken):
    class double(_Matching):
        def fits(self, filter: str, topic: str) -> bool:
            empty = any(a == "+" and not b for a, b in zip(filter.split("/"), topic.split("/"), strict=False))
            return super().fits(filter, topic) and not empty


class TestSUBSCRIPTION_07_ForgetsTheParent(_Broken):
    class double(_Matching):
        def fits(self, filter: str, topic: str) -> bool:
            return super().fits(filter, topic) and not (filter.endswith("/#") and filter[:-2] == topic)


class TestSUBSCRIPTION_08_SeesTheBrokersOwn(_Broken):
    class double(_Matching):
        def fits(self, filter: str, topic: str) -> bool:
            return super().fits(filter.replace("$", "S"), topic.replace("$", "S"))


class TestSUBSCRIPTION_09_EachClientOnce(_Broken):
    class double(NaiveIndex):
        def match(self, topic: str) -> Matches:
            found = super().match(topic)
            return Matches(tuple({each.client_id: each for each in found.subscribers}.values()), found.groups)


class TestSUBSCRIPTION_10_OneGroupForAFilter(_Broken):
    class double(NaiveIndex):
        def match(self, topic: str) -> Matches:
            found = super().match(topic)
            return Matches(found.subscribers, {("g", filter): who for (_, filter), who in found.groups.items()})


class TestSUBSCRIPTION_11_LeavesTheGroup(_Broken):
    class double(NaiveIndex):
        def __init__(self) -> None:
            super().__init__()
            self._ever: set[tuple[str, str]] = set()

        def add(self, client_id: str, subscription: Subscription) -> bool:
            if subscription.share_group is not None:
                self._ever.add((subscription.share_group, subscription.filter))
            return super().add(client_id, subscription)

        def match(self, topic: str) -> Matches:
            found = super().match(topic)
            left = {key: () for key in self._ever if matches(key[1], topic)}
            return Matches(found.subscribers, {**left, **found.groups})


class TestSUBSCRIPTION_12_AnswersItsOwnList(_Broken):
    class double(NaiveIndex):
        def __init__(self) -> None:
            super().__init__()
            self._answers: dict[str, list[Subscriber]] = {}

        def match(self, topic: str) -> Matches:
            found = super().match(topic)
            answer = self._answers.setdefault(topic, [])
            answer[:] = found.subscribers
            return Matches(answer, found.groups)  # type: ignore[arg-type]

        def add(self, client_id: str, subscription: Subscription) -> bool:
            added = super().add(client_id, subscription)
            self.match(subscription.filter)
            return added


class TestSUBSCRIPTION_13_ReplacingDoesNotCount(_Broken):
    class double(NaiveIndex):
        def add(self, client_id: str, subscription: Subscription) -> bool:
            before = self.generation
            added = super().add(client_id, subscription)
            if not added:
                self.generation = before
            return added


class TestSUBSCRIPTION_13_GoesDown(_Broken):
    class double(NaiveIndex):
        def remove(self, client_id: str, filter: str, share_group: str | None = None) -> bool:
            removed = super().remove(client_id, filter, share_group)
            self.generation = self.count()
            return removed


class TestSUBSCRIPTION_14_CountsFilters(_Broken):
    class double(NaiveIndex):
        def count(self) -> int:
            return len(list(self.filters()))


class TestSUBSCRIPTION_15_NamesTheGroup(_Broken):
    class double(NaiveIndex):
        def filters(self) -> Iterator[tuple[str, int]]:
            return iter([(each.full_filter, 1) for each in self._subscriptions.values()])


class _Exact(NaiveIndex):
    reason = ReasonCode.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED

    def add(self, client_id: str, subscription: Subscription) -> bool:
        if "+" in subscription.filter or "#" in subscription.filter:
            raise SubscriptionRefused("no wildcards", self.reason)
        return super().add(client_id, subscription)


class _Plain(_Exact):
    def add(self, client_id: str, subscription: Subscription) -> bool:
        if subscription.share_group is not None:
            raise SubscriptionRefused("no groups", ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED)
        return super().add(client_id, subscription)


class SoundPlain(_Broken):
    """An index that takes neither wildcards nor groups, and breaks nothing."""

    wildcards = shared = False
    double = _Plain


class TestSUBSCRIPTION_16_KeepsWhatItRefuses(_Broken):
    wildcards = False

    class double(_Exact):
        def add(self, client_id: str, subscription: Subscription) -> bool:
            NaiveIndex.add(self, client_id, subscription)
            return super().add(client_id, subscription)


class TestSUBSCRIPTION_16_SaysAnotherReason(_Broken):
    wildcards = False

    class double(_Exact):
        reason = ReasonCode.QUOTA_EXCEEDED


class TestSUBSCRIPTION_17_TakesTheGroupForNothing(_Broken):
    shared = False

    class double(NaiveIndex):
        def add(self, client_id: str, subscription: Subscription) -> bool:
            return super().add(client_id, evolve(subscription, share_group=None))


class TestSUBSCRIPTION_18_Recurses(_Broken):
    class double(_Matching):
        def fits(self, filter: str, topic: str) -> bool:
            ours, _, rest = filter.partition("/")
            its, _, more = topic.partition("/")
            if rest and more:
                return ours in ("+", its) and self.fits(rest, more)
            return super().fits(filter, topic)


class TestSUBSCRIPTION_18_RefusesWithoutAWord(_Broken):
    class double(NaiveIndex):
        def add(self, client_id: str, subscription: Subscription) -> bool:
            if len(subscription.filter) > 1000:
                raise ValueError("too long")
            return super().add(client_id, subscription)


class TestSUBSCRIPTION_19_CutsTheBranch(_Broken):
    class double(NaiveIndex):
        def remove(self, client_id: str, filter: str, share_group: str | None = None) -> bool:
            removed = super().remove(client_id, filter, share_group)
            below = f"{filter}/"
            if removed:
                self._subscriptions = {
                    key: each for key, each in self._subscriptions.items() if not key[1].startswith(below)
                }
            return removed


class TestSUBSCRIPTION_19_CountsTwice(_Broken):
    class double(NaiveIndex):
        extra = 0

        def add(self, client_id: str, subscription: Subscription) -> bool:
            added = super().add(client_id, subscription)
            self.extra += not added
            return added

        def count(self) -> int:
            return super().count() + self.extra


class TestSUBSCRIPTION_20_MixesUpWildcards(_Broken):
    class double(_Matching):
        def fits(self, filter: str, topic: str) -> bool:
            return super().fits(filter, topic) and not ("+" in filter and "/" in filter)
