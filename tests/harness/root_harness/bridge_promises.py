"""What holds for a broker with a sink when something is wrong, whatever the sink: rows of docs/bridge.md."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from core_harness.brokers import BrokerProcess, run_command, running_broker
from core_harness.wire import Wire, wire
from kinmqtt.mqtt.packets import V5, V311, Puback, Publish
from spi_harness.processes import wait_until

FILE: Final = "kinmqtt.toml"


class Bridged:
    """A broker with the sink ``out`` of a plugin, which takes the messages of ``to/#``.

    ``settings`` are all sections of the plugin, that of the sink at the end. ``come`` returns the payloads that the
    sink's target has got so far, in order.
    """

    def __init__(self, folder: Path, plugin: str, settings: str, come: Callable[[], Sequence[bytes]]) -> None:
        self.folder = folder
        self.plugin = plugin
        self.settings = settings
        self.come = come
        self.only = [plugin]
        """The plugins that run, beside the core's."""

    def write(self, more: str = "") -> None:
        """Write the settings, and these lines at their end."""
        only = ", ".join(f'"{each}"' for each in self.only)
        text = f"[broker]\nsys_interval_s = 0.1\n[plugins]\nonly = [{only}]\n{self.settings}{more}"
        (self.folder / FILE).write_text(text)

    def running(self) -> AbstractContextManager[BrokerProcess]:
        """A broker over the folder's data, with the settings that were written."""
        return running_broker("-c", FILE, "--data", str(self.folder / "data"), cwd=self.folder)

    def state_is(self, client: Wire, wanted: bytes) -> None:
        """Wait until the sink's state below ``$SYS`` is that."""
        client.subscribe(f"$SYS/bridge/{self.plugin}/out/state", packet_id=9)
        while True:
            packet = client.receive()
            assert packet is not None
            if isinstance(packet, Publish) and packet.payload == wanted:
                return

    def wait_for(self, *payloads: bytes) -> None:
        """Wait until the target has got exactly these."""
        wait_until(lambda: list(self.come()) == list(payloads), f"{payloads} have come")

    def full_outbox_refuses(self, repair: Callable[[], object]) -> None:
        """B5: a publisher of MQTT 5 gets 0x97, one of MQTT 3 is disconnected; what was acknowledged comes.

        Nothing comes until ``repair`` is called.
        """
        self.write(
            'outbox = { max_messages = 3, window = 1, when_full = "refuse" }\nsending = { longest_pause_s = 0.1 }\n'
        )
        with self.running() as process:
            with wire(process.port, "p", V5) as client:
                codes = [
                    client.publish("to/a", b"%d" % number, 1, packet_id=number).expect(Puback).reason
                    for number in range(1, 10)
                ]
            with wire(process.port, "old", V311) as client:
                assert client.publish("to/a", b"no", 1, packet_id=1).receive() is None
            taken = [b"%d" % number for number, code in enumerate(codes, 1) if code < 0x80]
            assert 3 <= len(taken) < 9
            assert {code for code in codes if code >= 0x80} == {0x97}
            repair()
            self.wait_for(*taken)

    def poison_is_parked(self, topic: str, payload: bytes, why: str, *come: bytes) -> None:
        """B6: the line says which sink, why, and what became of it; the others go on. ``come`` is what has come."""
        with self.running() as process, wire(process.port, "p", V5) as client:
            client.publish(topic, payload, 1, packet_id=1).expect(Puback)
            client.publish("to/a", b"2", 1, packet_id=2).expect(Puback)
            self.wait_for(*come)
            [line] = process.wait_for_line(f"sink {self.plugin}:out will never take a message")
            assert why in line
            assert "it is parked" in line

    def refusal_keeps_messages(self, texts: Sequence[str], repair: Callable[[], object], *come: bytes) -> None:
        """B7: REFUSED, with a line that says where and how, without secrets; publishers go on, a reload tries again.

        ``texts`` are in the line, ``wrong-one`` is the secret that is refused, and ``repair`` puts another one in its
        file.
        """
        with self.running() as process, wire(process.port, "p", V5) as client:
            client.publish("to/a", b"1", 1, packet_id=1).expect(Puback)
            self.state_is(client, b"refused")
            [line] = process.wait_for_line(f"sink {self.plugin}:out failed in ")
            for text in (*texts, "tried again in 60"):
                assert text in line
            repair()
            process.signal(signal.SIGHUP)
            self.wait_for(*come)
            assert "wrong-one" not in process.output

    def wrong_settings_change_nothing(self, wrong: str, place: str, problem: str) -> None:
        """B8: an unknown key is named with its place and the key that was meant; at a reload the old sink goes on."""
        self.write(wrong)
        for command in ("check", "run"):
            done = run_command(command, "-c", FILE, cwd=self.folder)
            assert done.returncode != 0
            assert f"{FILE}:{place}: plugins.{self.plugin}.sinks.out.{problem}" in done.stderr

        self.write()
        with self.running() as process, wire(process.port, "p", V5) as client:
            self.write(wrong)
            process.signal(signal.SIGHUP)
            process.wait_for_line(problem.split(": ")[-1].rstrip("?"))
            client.publish("to/a", b"1", 1, packet_id=1).expect(Puback)
            self.wait_for(b"1")

    def missing_target_is_waited_for(self, start: str, named: str, create: Callable[[], object]) -> None:
        """B9: its messages wait, with one line, and come when what is missing is there.

        The line begins with ``start`` and has ``named`` in it. ``create`` makes it, and checks first that nobody has.
        """
        self.write("sending = { longest_pause_s = 0.1 }\n")
        with self.running() as process, wire(process.port, "p", V5) as client:
            client.publish("to/a", b"1", 1, packet_id=1).expect(Puback)
            self.state_is(client, b"waiting")
            process.wait_for_line(f"sink {self.plugin}:out {start}")
            create()
            self.wait_for(b"1")
            assert len([line for line in process.lines if named in line]) == 1
