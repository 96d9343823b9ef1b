"""The promises of a cluster, checked when a world has come to rest.

The promises of a cluster whose nodes share their stores, by the numbers in violations:

- C1: QoS 0 comes at most once. C2: PUBACK and PUBREC follow the commit of every node with a subscriber.
- C3: a persistent session loses nothing acknowledged when a node dies. C5: QoS 2 comes once.
- C6: order by publisher, topic and QoS, but for what is under way while a session moves.
- C7: a client id has one owner. C8: after SUBACK every reachable node routes to the subscriber.
- C9: a shared subscription gets a message once. C10: all nodes find the same retained messages.
- C11: a will comes once. C12: delayed messages come once, and messages to a client reach its home.
- C13: nodes join, leave and come back. C16: a faulty node delays only those who publish to its subscribers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from kinmqtt.testing.world import plan as kinds
from kinmqtt.testing.world.device import Device, Got
from kinmqtt_spi.topics import matches

if TYPE_CHECKING:
    from kinmqtt.testing.world.world import World

QUICK_S: Final = 1.5
"""How long a message on one node may take while other nodes have faults."""

SPOILS_QUICK: Final = frozenset(
    {kinds.CRASH, kinds.RESTART, kinds.WRONGLY_DOWN, kinds.SLOW, kinds.AWAY, kinds.FREEZE}
)


def check(world: World) -> None:
    """Note each broken promise in the world's violations."""
    for rule in (_all_is_calm, _nothing_is_lost, _nothing_comes_twice, _order, _shared, _single, _retained, _quick):
        for problem in rule(world):
            world.violated(problem)


def _all_is_calm(world: World) -> Iterator[str]:
    for device in world.devices.values():
        if device.stays_away:
            continue
        if not device.is_online:
            yield f"liveness: {device.client_id} is not connected"
        if device.unfinished:
            yield f"liveness: {device.unfinished} messages of {device.client_id} are not acknowledged"
    for node in world.nodes:
        broker = node.harness.broker
        if node.problem is not None:
            yield f"liveness: {node.name}: {node.problem.value!r}"
        if not node.accepts:
            yield f"liveness: {node.name} has not started"
        elif broker.forwarder.unanswered:
            yield f"C2: {node.name} waits for answers to {broker.forwarder.unanswered} messages"
        if len(broker.forwarder.links()) != len(world.nodes) - 1:
            yield f"C13: {node.name} knows {len(broker.forwarder.links())} other nodes"


def _wanted(world: World, client_id: str, filters: tuple[tuple[str, int], ...]) -> Iterator[tuple[bytes, int, int]]:
    """Yield payload, QoS and granted QoS of each message that a subscriber must get: acknowledged, above QoS 0."""
    for payload, (publisher, topic, qos, _) in world.published.items():
        if qos and payload in world.devices[publisher].acknowledged:
            arrives = topic.split("/", 2)[2] if topic.startswith("$delayed/") else topic
            granted = max((each for filter, each in filters if matches(filter, arrives)), default=0)
            if granted:
                yield payload, qos, granted


def _subscribers(world: World) -> Iterator[Device]:
    for device in world.devices.values():
        if device.filters and not device.filters[0][0].startswith("$share/") and not _is_probe(device):
            yield device


def _is_probe(device: Device) -> bool:
    return device.client_id.startswith("probe")


def _nothing_is_lost(world: World) -> Iterator[str]:
    for device in _subscribers(world):
        got = {each.payload for each in device.got}
        for payload, qos, _ in _wanted(world, device.client_id, device.filters):
            if payload not in got:
                promise = "C12" if payload.startswith(b"d-") else "C8" if payload.startswith(b"f-") else "C3"
                yield f"{promise}: {payload.decode()} (QoS {qos}) never reached {device.client_id}"


def _nothing_comes_twice(world: World) -> Iterator[str]:
    for device in _subscribers(world):
        for (payload, qos), count in Counter((each.payload, each.qos) for each in device.got).items():
            if count > 1 and (qos == 2 or (not qos and payload in world.published)):
                promise = "C12" if payload.startswith(b"d-") else "C5" if qos else "C1"
                yield f"{promise}: {payload.decode()} (QoS {qos}) reached {device.client_id} {count} times"


def _order(world: World) -> Iterator[str]:
    """C6: messages of one publisher, topic and QoS come in their order, where no session moved."""
    if not world.keeps_sessions:
        return
    for device in _subscribers(world):
        last: dict[tuple[str, str, int], tuple[float, bytes]] = {}
        seen: set[bytes] = set()
        for each in device.got:
            sent = world.published.get(each.payload)
            if sent is None or each.payload in seen or each.topic.startswith("r/") or sent[1].startswith("$"):
                continue
            seen.add(each.payload)
            publisher, topic, qos, at_s = sent
            before = last.get((publisher, topic, qos))
            if before is not None and before[0] > at_s:
                yield f"C6: {device.client_id} got {each.payload.decode()} after {before[1].decode()}"
            last[(publisher, topic, qos)] = (at_s, each.payload)


def _shared(world: World) -> Iterator[str]:
    """C9: one member of the cluster gets each message."""
    members = [device for device in world.devices.values() if device.client_id in ("g0", "g1", "g2")]
    got = Counter(each.payload for device in members for each in device.got)
    for payload, qos, _ in _wanted(world, "g", (("m/#", 1),)):
        if not got[payload]:
            yield f"C9: {payload.decode()} (QoS {qos}) reached no member"
    if world.keeps_sessions:
        for payload, count in got.items():
            if count > 1:
                yield f"C9: {payload.decode()} reached members {count} times"


def _single(world: World) -> Iterator[str]:
    """C11: a will comes once."""
    wills = [each for each in world.devices["s0"].got if each.topic == "w/0"]
    if len(wills) != 1:
        yield f"C11: the will came {len(wills)} times"


def _retained(world: World) -> Iterator[str]:
    """C10: all nodes have the same values, and none is older than one that was acknowledged."""
    values: dict[str, dict[str, bytes]] = {}
    for device in world.devices.values():
        if _is_probe(device):
            for each in device.got:
                values.setdefault(each.topic, {})[device.client_id] = each.payload
    probes = sum(_is_probe(device) for device in world.devices.values())
    acknowledged = world.devices["r"].acknowledged
    for topic in ("r/0", "r/1"):
        order = [payload for payload, sent in world.published.items() if sent[1] == topic]
        last = max((order.index(payload) for payload in order if payload in acknowledged), default=-1)
        found = values.get(topic, {})
        if last >= 0 and len(found) != probes:
            yield f"C10: {topic} is retained on {len(found)} of {probes} nodes"
        if len(set(found.values())) > 1:
            yield f"C10: {topic} differs: {found}"
        for client_id, payload in found.items():
            if order.index(payload) < last:
                yield f"C10: {client_id} found {payload.decode()} on {topic}, older than an acknowledged one"


def _quick(world: World) -> Iterator[str]:
    """C16: faults of other nodes and of links don't delay what stays on a node."""
    steps = world.plan.steps
    for payload, at_s in world.quick.items():
        client_id = payload.decode().partition("-")[0]
        number = world.pinned[client_id]
        if number in world.expelled or any(step.kind in SPOILS_QUICK and step.node == number for step in steps):
            continue
        got: list[Got] = [each for each in world.devices[client_id].got if each.payload == payload]
        answered_s = world.devices[client_id].acknowledged.get(payload)
        if not got or answered_s is None or max(got[0].time_s, answered_s) - at_s > QUICK_S:
            yield f"C16: {payload.decode()} took too long on its own node"
