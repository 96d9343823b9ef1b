"""Every packet of the corpus that a client may send, sent to one running broker over TCP."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count

import pytest
from attrs import define, field

from core_harness.brokers import AMISS, BrokerProcess, running_broker
from core_harness.corpus import Entry, cases
from core_harness.verdicts import Verdict, is_connect, verdict
from core_harness.wire import Wire, wire
from kinmqtt.mqtt.packets import (
    V5,
    Connect,
    ConnectWill,
    DisconnectPacket,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
)

SENT = [(name, entry, version) for name, entry, version in cases(direction="client")]
SAMPLE = [(name, entry, version) for name, entry, version in SENT if len(entry.data) <= 60][::12]

SECRETS = ["hunter2-password", "eyes-only-payload", "last-will-payload", "broken-packet-payload"]


@define
class Run:
    """What a broker made of the whole corpus."""

    broker: BrokerProcess
    wrong: dict[str, str] = field(factory=dict)
    """What was not as expected, by test id."""
    closed_by_broker: int = 0
    undisturbed: int = 0
    """How often the client beside was served as before."""
    ids: Iterator[int] = field(factory=lambda: count(1))

    def connection(self, entry: Entry, version: int) -> Wire:
        """A connection on which the entry may be sent."""
        client = Wire(self.broker.port, version)
        if not is_connect(entry):
            client.connect(f"sender-{next(self.ids)}")
        return client


@pytest.fixture(scope="module")
def run() -> Run:
    """One broker and everything sent to it, until its stop."""
    with running_broker() as broker:
        result = Run(broker)
        with wire(broker.port, "other") as other:
            other.subscribe("other/#", qos=1)
            for number, (name, entry, version) in enumerate(SENT):
                _send(result, name, entry, version)
                if number % 10 == 0:
                    _served(result, other)
            _send_secrets(result)
            _served(result, other)
    return result


def _send(run: Run, name: str, entry: Entry, version: int) -> None:
    client = run.connection(entry, version)
    try:
        client.send_bytes(entry.data)
        expected = verdict(entry, version)
        answers, closed = (client.rest(), True) if expected.closes else _answers(client, expected)
    finally:
        client.close()
    wrong = expected.describe(answers, closed)
    if wrong:
        run.wrong[name] = wrong
    # A client's own DISCONNECT is nothing to tell an operator.
    if expected.closes and (entry.expected or {}).get("type") != "DISCONNECT":
        run.closed_by_broker += 1


def _answers(client: Wire, expected: Verdict) -> tuple[list[Packet], bool]:
    """What comes before the second of two pings has come back, and whether the connection is closed."""
    answers: list[Packet] = []
    for _ in range(2):
        client.send(Pingreq())
        while not isinstance(packet := client.receive(), Pingresp):
            if packet is None:
                return answers, True
            answers.append(packet)
    if expected.answer is Pingresp:
        answers.append(client.expect(Pingresp))
    return answers, False


def _served(run: Run, other: Wire) -> None:
    number = next(run.ids) % 60_000 + 1
    other.publish("other/x", b"x", qos=1, packet_id=number)
    packets = [other.receive(), other.receive()]
    [message] = [packet for packet in packets if isinstance(packet, Publish)]
    other.send(Puback(message.packet_id))
    run.undisturbed += 1


ENDED_BY_THE_BROKER = re.compile(
    r" (closed|refused( by \w+)?|disconnected after \d+ s: by the broker): .+ \(0x\w\w \w+\)$"
)

LIVED = re.compile(
    r" connected to .+ session|and \d+ more "
    r"|disconnected after \d+ s: (by the client \(0x\w\w \w+\)|the connection was lost: )"
)
"""What stands in the log of clients that the broker did not end."""


def _send_secrets(run: Run) -> None:
    """What no log may show, in good packets and in bad ones."""
    password, payload, last_will, broken = SECRETS
    will = ConnectWill("secret/will", last_will.encode(), 0, False)
    with wire(run.broker.port) as client:
        client.connect("secretive", will=will, username="ann", password=password.encode())
        client.publish("secret/x", payload.encode())
        client.send_bytes(b"\x36" + bytes([len(broken)]) + broken.encode())
        client.rest()
    run.closed_by_broker += 1
    with wire(run.broker.port) as client:
        packet = Connect(
            version=V5,
            client_id="secretive",
            clean_start=True,
            keep_alive=0,
            will=will,
            username="ann",
            password=password.encode(),
        )
        client.send(packet).send(packet)
        assert isinstance(client.rest()[-1], DisconnectPacket)
    run.closed_by_broker += 1


def test_every_packet_is_judged_as_it_should_be(run: Run) -> None:
    """Good packets are answered, bad ones are refused with their reason, on real connections as in memory."""
    assert run.wrong == {}


def test_another_client_is_undisturbed(run: Run) -> None:
    """A client beside is served all the time, whatever the others send."""
    assert run.undisturbed == (len(SENT) + 9) // 10 + 1


def test_the_log_has_nothing_amiss(run: Run) -> None:
    """Nothing that clients sent led to a failure of the broker's own."""
    assert [line for line in run.broker.lines if AMISS.search(line)] == []


def test_the_log_has_one_line_for_each_closed_client(run: Run) -> None:
    """Each connection that the broker closed has a line with the reason, or is in the sum of a storm."""
    told = [line for line in run.broker.lines if "[kinmqtt.connection#" in line]
    ended = [line for line in told if ENDED_BY_THE_BROKER.search(line)]
    # A client may come before the broker has noticed that the one before, of the same id, has gone.
    expected = ("SERVER_SHUTTING_DOWN", "SESSION_TAKEN_OVER")
    others = [line for line in ended if not any(word in line for word in expected)]
    summed_up = [int(count) for line in told for count in re.findall(r"(\d+) more (?:refused|disconnected)", line)]

    assert len(others) <= run.closed_by_broker <= len(others) + sum(summed_up)
    assert all(ENDED_BY_THE_BROKER.search(line) or LIVED.search(line) for line in told)


def test_the_log_has_no_secrets(run: Run) -> None:
    """Neither passwords nor payloads nor wills are in the log, whether their packets were good or bad."""
    log = "\n".join(line for line in run.broker.lines if "kinmqtt" in line)

    assert [secret for secret in SECRETS if secret in log] == []
    assert [word for word in corpus_secrets() if word in log] == []


def corpus_secrets() -> Iterator[str]:
    """The passwords and payloads of the corpus that can't stand in a log by chance."""
    for _, entry, _ in SENT:
        expected = entry.expected or {}
        fields = [expected.get("payload"), expected.get("password"), expected.get("will", {}).get("payload")]
        for told in filter(None, fields):
            secret = bytes.fromhex(told)
            if len(secret) > 3:
                yield repr(secret)[2:-1]
                yield secret.hex()


def test_every_prefix_of_a_sample() -> None:
    """A client that goes after any number of bytes, in good order or by a reset, disturbs nobody."""
    with running_broker() as broker:
        run = Run(broker)
        with wire(broker.port, "other") as other:
            other.subscribe("other/#", qos=1)
            for _, entry, version in SAMPLE:
                for length in range(1, len(entry.data)):
                    client = run.connection(entry, version)
                    client.send_bytes(entry.data[:length])
                    if length % 2:
                        client.reset()
                    else:
                        client.close()
                _served(run, other)
