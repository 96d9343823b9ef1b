"""What two nodes must send each other, decided from one node's index and the lists of the other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from attrs import frozen

from kinmqtt.broker.retained_sync.index import VersionIndex
from kinmqtt.broker.retained_sync.pages import Entry, Section
from kinmqtt_spi.errors import MalformedBatch


@frozen(slots=True)
class Difference:
    """What differs in a part of a bucket."""

    wanted: tuple[str, ...]
    """Topics whose message the other node has, and this one lacks or has an older one of."""
    deleted: tuple[Entry, ...]
    """Deletions that this node does not know."""
    offered: tuple[str, ...]
    """Topics of which this node has a newer message, or a newer deletion."""


def compare(index: VersionIndex, section: Section, after: str, now: float) -> Difference:
    """Compare a section of another node with the same part of the index; it begins behind the topic ``after``."""
    wanted: list[str] = []
    deleted: list[Entry] = []
    listed = {entry.topic: entry for entry in section.entries}
    versions = index.versions(section.bucket)
    for entry in section.entries:
        if versions.get(entry.topic) == entry.version:
            continue
        if index.is_newer(entry.topic, entry.version, entry.is_deletion, now):
            if entry.is_deletion:
                deleted.append(entry)
            else:
                wanted.append(entry.topic)
    last = None if section.is_whole else section.entries[-1].topic
    offered: list[str] = []
    for topic in index.topics(section.bucket, after):
        if last is not None and topic > last:
            break
        other = listed.get(topic)
        if other is None or versions[topic] > other.version:
            offered.append(topic)
    return Difference(tuple(wanted), tuple(deleted), tuple(offered))


def next_request(buckets: Sequence[int], after: str, sections: Sequence[Section]) -> tuple[Sequence[int], str]:
    """Return what to ask next after the ``sections`` that answered a request; no buckets at the end.

    Raises :class:`~kinmqtt_spi.errors.MalformedBatch` if they do not answer it.
    """
    for position, section in enumerate(sections):
        is_last = position == len(sections) - 1
        if position >= len(buckets) or section.bucket != buckets[position] or not (section.is_whole or is_last):
            raise MalformedBatch("a list of other buckets than were asked for")
        topics = [after if position == 0 else "", *[entry.topic for entry in section.entries]]
        if any(one >= other for one, other in pairwise(topics)):
            raise MalformedBatch("a list that is out of order")
    if not sections:
        raise MalformedBatch("a list without any bucket")
    if sections[-1].is_whole:
        return buckets[len(sections) :], ""
    return buckets[len(sections) - 1 :], sections[-1].entries[-1].topic
