"""What is done with poison: messages that a sink will never take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from kinmqtt_spi.bridging.environment import Environment, SinkCounters
from kinmqtt_spi.bridging.failures import FailureLog
from kinmqtt_spi.bridging.lanes import Lane, Parcel
from kinmqtt_spi.bridging.parking import NotParked, Parking
from kinmqtt_spi.bridging.pauses import Pauses
from kinmqtt_spi.services.bridge import SinkPlan
from kinmqtt_spi.services.outbox import Outbox
from kinmqtt_spi.services.plugin import Timer
from kinmqtt_spi.values import Message

PoisonHandler: TypeAlias = Callable[[Message, str], None]
"""Called with a message and the reason, after it was parked or dropped."""


class Disposal:
    """Parks, drops, or halts a lane, as the plan says.

    A parked message is acknowledged to its outbox only after it is committed among the parked ones. Until then the
    lane goes on, and parking is tried again after pauses. Its memory is bounded by the outbox's window.
    """

    def __init__(
        self,
        outbox: Outbox,
        environment: Environment,
        counters: SinkCounters,
        failures: FailureLog,
        on_poisoned: PoisonHandler,
        send_again: Callable[[Sequence[Parcel]], None],
    ) -> None:
        """``send_again`` puts messages back into their lanes."""
        self._outbox = outbox
        self._environment = environment
        self._counters = counters
        self._failures = failures
        self._on_poisoned = on_poisoned
        self._send_again = send_again
        self._unparked: list[tuple[Parcel, str]] = []
        """Messages whose parking has failed, with the reasons."""
        self._timer: Timer | None = None

    def set_plan(self, plan: SinkPlan, parking: Parking | None) -> None:
        """Set the plan. Raises ``ValueError`` if it parks and there is no parking."""
        sending = plan.sending
        if sending.poison == "park" and parking is None:
            raise ValueError("poison = 'park' needs an outbox of parked messages")
        self._poison = sending.poison
        self._parking = parking if sending.poison == "park" else None
        self._pauses = Pauses(sending.first_pause_s, sending.longest_pause_s, self._environment.random)

    def dispose(self, lane: Lane, parcel: Parcel, why: str) -> None:
        """Do with a poison message what the plan says."""
        self._counters.poisoned.value += 1
        if self._poison == "stop":
            lane.halted, lane.why = True, why
            self._failures.poisoned(why, "its lane is halted until a reload")
        elif self._parking is None:
            self._failures.poisoned(why, "it is dropped")
            self._gone(parcel, why)
        else:
            self._failures.poisoned(why, "it is parked")
            self._park(parcel, why, self._parking)

    def resume(self) -> None:
        """Try again to park what could not be parked before."""
        if self._unparked and self._timer is None:
            self._timer = self._environment.clock.later(self._pauses.next_s(), self._park_again)

    def rest(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _park(self, parcel: Parcel, why: str, parking: Parking) -> None:
        try:
            parking.park(
                parcel.message, why, partial(self._gone, parcel, why), partial(self._not_parked, parcel, why)
            )
        except NotParked as error:
            self._not_parked(parcel, why, str(error))

    def _not_parked(self, parcel: Parcel, why: str, problem: str = "its commit has failed") -> None:
        self._failures.problem("parking", f"a message can't be parked: {problem}")
        self._unparked.append((parcel, why))
        self.resume()

    def _park_again(self) -> None:
        self._timer = None
        unparked, self._unparked = self._unparked, []
        if self._poison == "stop":  # the plan has changed since; the sink halts them if it refuses them again
            self._send_again([parcel for parcel, _ in unparked])
            return
        for parcel, why in unparked:
            if self._parking is None:  # so has it here: it drops
                self._gone(parcel, why)
            else:
                self._park(parcel, why, self._parking)

    def _gone(self, parcel: Parcel, why: str) -> None:
        self._pauses.reset()
        self._outbox.acknowledge([parcel.number])
        self._on_poisoned(parcel.message, why)
