"""Real processes for tests: a broker as a person would start it, and commands that run to their end.

    with running_broker() as broker:
        ...  # broker.port takes connections
    # stopped by SIGTERM, exit status 0, nothing amiss in its log

Nothing here sleeps: a broker is there when it says so in its log, and every wait has a time limit.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from spi_harness.processes import TIME_LIMIT_S, Process, environment, free_port, script

AMISS = re.compile(r"Traceback|[Ff]ailure|Unhandled|Unexpected|Warning:")
"""What never stands in the log of a sound broker."""


def run_command(
    *arguments: str,
    program: Sequence[str] = (sys.executable, "-m", "kinmqtt"),
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    input: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with standard output and standard error apart."""
    return subprocess.run(
        [*program, *arguments],
        input=input,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
        cwd=cwd,
        env=dict(env) if env is not None else environment(),
        check=False,
    )


class BrokerProcess(Process):
    """A broker that runs, and the port on which it takes connections."""

    def __init__(self, command: Sequence[str], port: int, **options: object) -> None:
        super().__init__(command, **options)  # type: ignore[arg-type]
        self.port = port
        self.good_status = 0
        self._told = False

    def tell_to_stop(self) -> None:
        """Ask it to stop, as an operator does; it is asked once only."""
        if not self._told:
            self._told = True
            self.signal(signal.SIGTERM)

    def stop(self) -> None:
        """Stop it, and look whether it went in good order."""
        self.tell_to_stop()
        status = self.wait()
        assert status == self.good_status, f"the broker ended with status {status}:\n{self.output}"
        amiss = [line for line in self.lines if AMISS.search(line)]
        assert not amiss, f"the broker's log has {amiss[0]!r}:\n{self.output}"


def broker_command(port: int, *arguments: str) -> list[str]:
    """``kinmqtt run`` on a port of the loopback interface."""
    endpoint = f"tcp:{port}:interface=127.0.0.1"
    return [sys.executable, "-m", "kinmqtt", "run", "--listen", endpoint, "--data", "memory", *arguments]


def twistd_command(port: int, *arguments: str, options: Sequence[str] = ()) -> list[str]:
    """``twistd kinmqtt`` on a port of the loopback interface; ``options`` are twistd's own."""
    endpoint = f"tcp:{port}:interface=127.0.0.1"
    return [script("twistd"), "-n", "--pidfile=", *options, "kinmqtt", "--listen", endpoint, *arguments]


@contextmanager
def running_broker(
    *arguments: str,
    command: Callable[..., list[str]] = broker_command,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[BrokerProcess]:
    """A broker, from its first listening to its stop in good order; a test that fails has its log."""
    port = free_port()
    broker = BrokerProcess(command(port, *arguments), port, cwd=cwd, env=env)
    if "twistd" in Path(broker.command[0]).name:
        # What stopped it in good order is how twistd says how it ended.
        broker.good_status = -signal.SIGTERM
    try:
        broker.wait_for_line(r"listening on ")
        yield broker
        broker.stop()
    except BaseException:
        print(f"The log of the broker on port {port}:\n{broker.output}")
        raise
    finally:
        broker.end()
