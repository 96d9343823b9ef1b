"""A world: nodes, clients and a plan on one virtual clock."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from hashlib import sha256
from random import Random
from typing import Final

from twisted.python.failure import Failure

from kinmqtt.mqtt.packets import ConnectWill
from kinmqtt.testing.world.device import Device
from kinmqtt.testing.world.links import LinksFactory, NodeProcess
from kinmqtt.testing.world.nemesis import Nemesis
from kinmqtt.testing.world.node import Node
from kinmqtt.testing.world.plan import FAULTS_END_S, Plan
from kinmqtt.testing.world.schedule import Schedule
from kinmqtt.testing.world.stores import Leases, SharedStores
from kinmqtt.testing.world.told import ToldLinks
from kinmqtt.testing.world.wire import Wire
from kinmqtt_spi.errors import SpiError
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.values import NodeIdentity

FAILED_PAUSE_S, LOOK_S = 1.0, 0.5
"""After how long a process that could not start, and one that waits for leases, tries again."""
LOAD_BEGINS_S: Final = 4.0
LOAD_ENDS_S: Final = FAULTS_END_S - 5.0
PROBES_S: Final = 115.0
END_S: Final = 125.0
"""After the last fault there are 60 seconds to settle."""

SUBSCRIBERS: Final = {
    "s0": (("m/#", 2), ("w/#", 2), ("r/#", 1)),
    "s1": (("m/#", 1),),
    "s2": (("+/p0", 2),),
    "s3": (("m/p1", 1), ("m/p2", 2)),
}
"""By client id: filters and QoS of sessions that last for the whole run."""

MEMBERS: Final = ("g0", "g1", "g2")
SHARED: Final = (("$share/g/m/#", 1),)
PUBLISHERS: Final = ("p0", "p1", "p2", "p3")
RETAINED_TOPICS: Final = ("r/0", "r/1")
FRESH: Final = 6
"""How many subscribers come while messages for them are published at once on another node."""
MESSAGES: Final = 160
WILL_DELAY_S: Final = 20


class World:
    """One run. Everything that happens follows from the plan and its seed."""

    def __init__(self, plan: Plan, links: LinksFactory = ToldLinks) -> None:
        self.plan = plan
        self.schedule = Schedule()
        self.stores = SharedStores()
        self.nodes: list[Node] = []
        """By number; a node that was started again has its place."""
        self.devices: dict[str, Device] = {}
        self.published: dict[bytes, tuple[str, str, int, float]] = {}
        """By payload: publisher, topic, QoS and time."""
        self.violations: list[str] = []
        self.trace: list[str] = []
        self.pinned: dict[str, int] = {}
        """By client id: the number of the only node that it uses."""
        self.quick: dict[bytes, float] = {}
        """By payload of a message that stays on its node: when it was published."""
        self._random = {name: Random(f"{name} {plan.seed}") for name in ("clients", "load", "disk", "nemesis")}
        self.links = links(self, self._random["nemesis"])
        self._nemesis = Nemesis(self, self._random["nemesis"])
        self.expelled: set[int] = set()
        """The numbers of the nodes that had to start again, because the others had given them up."""
        self._leases = None if self.links.lease_s is None else Leases(self.stores, self.links.lease_s)
        self._serial = 0
        self._epochs: dict[str, int] = {}

    # What tests and the nemesis use

    def note(self, line: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{self.schedule.time_s:.6f} {line}")

    def violated(self, line: str) -> None:
        """Note a broken promise."""
        self.violations.append(line)
        self.note(f"VIOLATED {line}")

    @property
    def digest(self) -> str:
        """A digest of everything that happened."""
        return sha256("\n".join(self.trace).encode()).hexdigest()

    @property
    def living(self) -> int:
        """The number of nodes that run."""
        return sum(node.is_alive for node in self.nodes)

    @property
    def keeps_sessions(self) -> bool:
        """Whether all sessions stayed where they were, and all nodes lived."""
        return self.plan.keeps_sessions and not self.expelled

    @property
    def movable(self) -> list[Device]:
        """The devices that may use any node."""
        return [each for each in self.devices.values() if each.client_id not in self.pinned and not each.stays_away]

    def crash(self, node: Node) -> None:
        """End a node without a word; the others find out later."""
        node.crash()
        self.links.crashed(node)

    def start_again(self, number: int, ended: NodeProcess) -> None:
        """Start a process in the place of one that has ended."""
        if self.nodes[number] is ended and not ended.is_alive:
            self.nodes[number] = self._start_node(number)

    # The run

    def run(self) -> None:
        """Let everything happen."""
        schedule = self.schedule
        began_s = schedule.time_s = 0.0 - self.links.warm_up_s
        for number in range(self.plan.nodes):
            self.nodes.append(self._start_node(number))
            self._advance(began_s + 0.2 * (number + 1))
        schedule.later(max(0.0, -schedule.time_s), self._begin)
        for step in self.plan.steps:
            schedule.later(step.at_s - schedule.time_s, partial(self._nemesis.carry_out, step))
        schedule.later(FAULTS_END_S - schedule.time_s, self._mend)
        schedule.later(PROBES_S - schedule.time_s, self._probe)
        while schedule.time_s < END_S:
            self._advance(min(END_S, schedule.time_s + 1.0))
            self._check_epochs()
            if self._leases is not None:
                self._leases.look(self._heard_of, schedule.time_s)

    def _start_node(self, number: int) -> Node:
        self._serial += 1
        name = f"n{number}"
        uid = self.links.new_uid(self._serial)
        node = Node(self.schedule, self.links, self.stores, self._random["disk"], name, uid)
        self.note(f"{name} starts as {node.identity.uid}")
        node.harness.broker.when_expelled(partial(self._expelled, number, node))
        self.links.starts(node)
        self._begin_start(number, node)
        if self._leases is not None:
            self._leases.started(node.identity, self.schedule.time_s)
        return node

    def _begin_start(self, number: int, node: Node) -> None:
        if self._leases is None or self._leases.are_known(self._heard_of):
            node.start(partial(self._could_not_start, number, node))
        elif node.is_alive:
            self.schedule.later(LOOK_S, partial(self._begin_start, number, node))

    @property
    def _heard_of(self) -> set[NodeIdentity]:
        return {node.identity for node in self.nodes if node.reaches_stores}

    def _could_not_start(self, number: int, node: Node, failure: Failure) -> None:
        if self.links.starts_failed_again and failure.check(SpiError):
            self.note(f"{node.name} can't start: {failure.value}")
            node.crash()
            self.schedule.later(FAILED_PAUSE_S, partial(self.start_again, number, node))
        else:
            node.problem = failure

    def _expelled(self, number: int, node: Node, reason: str) -> None:
        """Start again, as ``kinmqtt run`` does."""
        self.note(f"{node.name} is expelled: {reason}")
        self.expelled.add(number)
        self.schedule.later(0.0, partial(node.stop, partial(self.start_again, number, node)))

    def _advance(self, until_s: float) -> None:
        self._settle()
        self.schedule.run_until(until_s, self._settle)

    def _settle(self) -> None:
        busy = True
        while busy:
            busy = False
            for node in self.nodes:
                busy |= node.settle()

    def _mend(self) -> None:
        self.note("mended")
        self._nemesis.mend()
        for number, node in enumerate(self.nodes):
            self.start_again(number, node)

    # Clients

    def _begin(self) -> None:
        for client_id, filters in SUBSCRIBERS.items():
            self._add(client_id, filters)
        for client_id in MEMBERS:
            self._add(client_id, SHARED)
        for client_id in (*PUBLISHERS, "r", "d"):
            self._add(client_id)
        # A client that comes back in time takes its will back (MQTT-3.1.3-9).
        properties = Properties(will_delay_interval=WILL_DELAY_S)
        self._add("w", will=ConnectWill("w/0", b"will", 2, properties=properties))
        for number in range(self.plan.nodes):
            self.pinned[f"q{number}"] = number
            self._add(f"q{number}", ((f"q/{number}", 1),))
        load = self._random["load"]
        for number in range(FRESH):
            self.schedule.later(3.0 + 0.5 * number, partial(self._come_fresh, number))
        for number in range(MESSAGES):
            self.schedule.later(load.uniform(LOAD_BEGINS_S, LOAD_ENDS_S), partial(self._publish_some, number))
        self.schedule.later(load.uniform(10.0, 40.0), self.devices["w"].leave)

    def _add(
        self, client_id: str, filters: tuple[tuple[str, int], ...] = (), will: ConnectWill | None = None
    ) -> Device:
        clients = self._random["clients"]
        device = Device(
            client_id,
            clients,
            self._find_wire,
            self.schedule.later,
            lambda: self.schedule.time_s,
            self.note,
            self.violated,
            filters,
            will,
        )
        self.devices[client_id] = device
        self.schedule.later(clients.uniform(0.0, 0.5), device.connect)
        return device

    def _find_wire(self, device: Device) -> Wire | None:
        number = self.pinned.get(device.client_id)
        nodes = self.nodes if number is None else [self.nodes[number]]
        accepting = [node for node in nodes if node.accepts and not node.clock.is_frozen]
        if not accepting:
            return None
        node = self._random["clients"].choice(accepting)
        self._serial += 1
        return Wire(self.schedule, node, device, self.plan.client_delay_s, self._serial)

    def publish(self, client_id: str, topic: str, payload: bytes, qos: int, retain: bool = False) -> None:
        """Let a device publish a message that is checked later."""
        self.published[payload] = (client_id, topic, qos, self.schedule.time_s)
        self.devices[client_id].publish(topic, payload, qos, retain)

    def _publish_some(self, number: int) -> None:
        load = self._random["load"]
        kind = load.random()
        if kind < 0.70:
            client_id = load.choice(PUBLISHERS)
            qos = load.choices((0, 1, 2), (1, 2, 2))[0]
            self.publish(client_id, f"m/{client_id}", b"%s-%d" % (client_id.encode(), number), qos)
        elif kind < 0.80:
            topic = load.choice(RETAINED_TOPICS)
            self.publish("r", topic, b"r-%d" % number, 1, retain=True)
        elif kind < 0.84:
            self.publish("d", f"$delayed/{load.randint(1, 5)}/m/d", b"d-%d" % number, 2)
        else:
            at = load.randrange(self.plan.nodes)
            payload = b"q%d-%d" % (at, number)
            if self.devices[f"q{at}"].is_online:
                self.quick[payload] = self.schedule.time_s
                self.publish(f"q{at}", f"q/{at}", payload, 1)

    def _come_fresh(self, number: int) -> None:
        """Subscribe on one node; the moment that SUBACK comes, a client of another node publishes."""
        here = number % self.plan.nodes
        there = (here + 1) % self.plan.nodes
        self.pinned[f"f{number}"] = here
        fresh = self._add(f"f{number}", ((f"f/{number}", 1),))
        publish: Callable[[], object] = partial(self.publish, f"q{there}", f"f/{number}", b"f-%d" % number, 1)
        fresh.when_subscribed = publish

    def _probe(self) -> None:
        """Ask each node for the retained messages."""
        for number in range(self.plan.nodes):
            self.pinned[f"probe{number}"] = number
            self._add(f"probe{number}", (("r/#", 1),))

    # Checks during the run

    def _check_epochs(self) -> None:
        """C7: an epoch has one owner, and never falls."""
        owners: dict[tuple[str, int], str] = {}
        highest: dict[str, int] = {}
        for node in self.nodes:
            if not node.is_alive:
                continue
            for client_id, session in node.harness.broker.sessions.by_id.items():
                other = owners.setdefault((client_id, session.epoch), node.name)
                if other != node.name:
                    self.violated(f"C7: {other} and {node.name} own {client_id} in epoch {session.epoch}")
                highest[client_id] = max(highest.get(client_id, 0), session.epoch)
        for client_id, epoch in highest.items():
            self._epochs[client_id] = max(self._epochs.get(client_id, 0), epoch)
