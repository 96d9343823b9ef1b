"""The limits of the whole broker: their defaults, their resolution on a machine, and the checks of names by them."""

from __future__ import annotations

from math import ceil
from typing import Any, Final, Literal, TypeAlias

from attrs import evolve, fields, frozen

from kinmqtt.mqtt.characters import disallowed_in
from kinmqtt.settings.defaults import FileShare, MachineDefault, MemoryShare
from kinmqtt.settings.machine import Machine
from kinmqtt_spi.markers import NOTICE_LIMIT_S
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.services.queue import OverflowPolicy
from kinmqtt_spi.settings import setting

NEVER_EXPIRES: Final = 0xFFFF_FFFF
"""The session expiry interval of a session that never expires (section 3.1.2.11.2)."""

WATERMARKS: Final = ("memory_slow_bytes", "memory_drop_bytes", "memory_refuse_bytes")
"""The memory watermarks, the lowest first."""

REFUSE_SHARE: Final = 0.85
"""The default share of the memory limit above which the broker refuses new clients, subscriptions and sessions.

The rest is for messages in transit, for the kernel's socket buffers, which count in a container's limit, and for
the stores' files.
"""

ControlCharacters: TypeAlias = Literal["refuse", "allow"]


@frozen(slots=True)
class LimitSettings:
    """``[limits]``: how much of everything one client may have. docs/limits.md says what happens at each bound."""

    max_connections: int = setting(
        FileShare(), help="connections at one time, by all listeners together; 0 for no limit", minimum=0
    )
    max_packet_bytes: int = setting(
        8 << 20, help="the largest packet taken from a client", unit="bytes", minimum=64, maximum=268_435_460
    )
    max_connect_bytes: int = setting(
        64 << 10, help="the largest packet accepted before a client is", unit="bytes", minimum=64
    )
    connect_time_limit_s: float = setting(
        10.0, help="how long a connection may take until it is accepted", unit="s", minimum=0.1
    )
    packet_time_limit_s: float = setting(
        60.0,
        help="how long a client may take over one packet; longer while 64 KiB of it arrive in each such time",
        unit="s",
        minimum=1,
    )
    max_all_inbound_bytes: int = setting(
        MemoryShare(0.1, 256 << 20),
        help="of all clients together, bytes of packets that have not arrived in full, or that wait for an answer "
        "to an earlier one",
        unit="bytes",
        minimum=1024,
    )
    receive_maximum: int = setting(
        1024, help="QoS 1 and 2 messages a client may have unacknowledged", minimum=1, maximum=65_535
    )
    max_inflight: int = setting(
        1024,
        help="QoS 1 and 2 messages sent to a client and not acknowledged; a client's own receive maximum applies if "
        "it is lower",
        minimum=1,
        maximum=65_535,
    )
    max_inflight_bytes: int = setting(
        64 << 20,
        help="the size of large messages (over 16 KiB) sent to a client and not acknowledged",
        unit="bytes",
        minimum=1024,
    )
    max_queued_messages: int = setting(10_000, help="queued messages for one client", minimum=1)
    max_queued_bytes: int = setting(64 << 20, help="their approximate size in memory", unit="bytes", minimum=1024)
    max_all_queued_bytes: int = setting(
        MemoryShare(0.2, 2 << 30), help="the same for all clients together", unit="bytes", minimum=1024
    )
    queue_full: OverflowPolicy = setting(
        OverflowPolicy.DROP_NEWEST, help="the overflow policy of a full queue if no plugin decides"
    )
    outbound_buffer_bytes: int = setting(
        8 << 20,
        help="bytes that wait for a client's socket before QoS 0 messages to it are dropped and it is not read from",
        unit="bytes",
        minimum=1024,
    )
    outbound_time_limit_s: float = setting(
        300.0,
        help="how long a client's socket may exceed that before the client is disconnected",
        unit="s",
        minimum=1,
    )
    notice_time_limit_s: float = setting(
        NOTICE_LIMIT_S,
        help="how long a plugin may take over one notice, while later ones wait; then it is cancelled",
        unit="s",
        minimum=0.1,
    )
    max_all_outbound_bytes: int = setting(
        MemoryShare(0.1, 512 << 20),
        help="bytes that wait for the sockets of all clients together, or are sent and not acknowledged",
        unit="bytes",
        minimum=1024,
    )
    max_filters: int = setting(1000, help="topic filters in one SUBSCRIBE or UNSUBSCRIBE", minimum=1)
    max_user_properties: int = setting(
        100,
        help="user properties (and subscription identifiers) in one packet, those of its will counted separately",
        minimum=0,
    )
    max_properties_bytes: int = setting(
        128 << 10,
        help="the properties of one packet, those of its will counted separately",
        unit="bytes",
        minimum=64,
    )
    memory_slow_bytes: int = setting(
        MemoryShare(0.6),
        help="resident memory above which publishers are read from slowly; 0 for never",
        unit="bytes",
        minimum=0,
    )
    memory_drop_bytes: int = setting(
        MemoryShare(0.75),
        help="resident memory above which messages of QoS 0 are dropped; 0 for never",
        unit="bytes",
        minimum=0,
    )
    memory_refuse_bytes: int = setting(
        MemoryShare(REFUSE_SHARE),
        help="resident memory above which new connections, subscriptions and persistent sessions are refused, and "
        "the connections that hold the most are disconnected; 0 for never",
        unit="bytes",
        minimum=0,
    )
    topic_alias_maximum: int = setting(64, help="topic aliases a client may use", minimum=0, maximum=65_535)
    topic_aliases_used: int = setting(
        16,
        help="topic aliases the broker uses towards a client that supports them; packets to such a client are not "
        "shared with others",
        minimum=0,
        maximum=65_535,
    )
    max_keep_alive_s: int = setting(
        65_535,
        help="a longer keep alive, or none, is replaced in MQTT 5",
        unit="s",
        minimum=1,
        maximum=65_535,
    )
    max_session_expiry_s: int = setting(
        NEVER_EXPIRES,
        help="a longer session expiry interval is reduced to it",
        unit="s",
        minimum=0,
        maximum=NEVER_EXPIRES,
    )
    max_client_id_bytes: int = setting(1024, help="the longest client id", unit="bytes", minimum=23, maximum=65_535)
    max_username_bytes: int = setting(
        1024,
        help="the longest user name, the authenticator's or else CONNECT's",
        unit="bytes",
        minimum=1,
        maximum=65_535,
    )
    max_topic_levels: int = setting(200, help="levels of a topic or filter", minimum=1)
    max_topic_bytes: int = setting(
        4096,
        help="the longest topic or filter, in UTF-8; including $share/NAME/",
        unit="bytes",
        minimum=1,
        maximum=65_535,
    )
    control_characters: ControlCharacters = setting(
        "refuse",
        help="whether control characters and non-characters are allowed in topics, filters, client ids and user "
        "names; a packet that has one is malformed, or is accepted",
    )
    max_subscriptions: int = setting(10_000, help="subscriptions of one client", minimum=1)
    max_subscription_bytes: int = setting(
        8 << 20, help="their approximate size in memory", unit="bytes", minimum=1024
    )
    max_all_subscription_bytes: int = setting(
        MemoryShare(0.1, 512 << 20), help="the same for all clients together", unit="bytes", minimum=1024
    )
    max_will_bytes: int = setting(
        128 << 10, help="the approximate size in memory of one client's will", unit="bytes", minimum=0
    )
    max_all_will_bytes: int = setting(
        MemoryShare(0.05, 256 << 20),
        help="the same for all clients together, including disconnected ones whose will is pending",
        unit="bytes",
        minimum=0,
    )
    max_match_steps: int = setting(
        1000,
        help="what one client's filters may add to matching one message: each distinct pattern of + adds its levels "
        "from the first + on, and each pattern of each shared subscription's group ten more",
        minimum=1,
    )
    max_sessions: int = setting(1_000_000, help="persistent sessions, connected or not", minimum=0)
    max_retained_messages: int = setting(1_000_000, help="topics with a retained message", minimum=0)
    max_retained_bytes: int = setting(
        MemoryShare(0.1, 1 << 30), help="their approximate size in memory", unit="bytes", minimum=0
    )

    user_share: float = setting(
        0.5,
        help="the share of max_sessions, max_all_subscription_bytes, max_all_will_bytes, max_all_queued_bytes, "
        "max_retained_messages and max_retained_bytes for one user, or (except for retained messages) for one "
        "address without a verified user name; 1 for all of it",
        minimum=0.001,
        maximum=1,
    )

    def share_of(self, most: int) -> int:
        """Returns the share of one user in a bound that holds for all; the unit is that of ``most``."""
        return ceil(most * self.user_share)

    def resolved(self, machine: Machine) -> LimitSettings:
        """Returns these limits with plain numbers in place of the defaults that follow from the machine.

        A ``memory_refuse_bytes`` that is set below the machine's memory also lowers the memory that shares are of.
        """
        most = self.memory_refuse_bytes
        if most and not isinstance(most, MachineDefault):
            meant = int(most / REFUSE_SHARE)
            machine = evolve(machine, memory_bytes=min(meant, machine.memory_bytes or meant))
        found = {name: value.on(machine) for name, value in self._left_out}
        for position, name in enumerate(WATERMARKS):
            if found.get(name):
                given = [0 if each in found else getattr(self, each) for each in WATERMARKS]
                above = [each for each in given[position:] if each]
                found[name] = min([max(found[name], *given[: position + 1]), *above])
        changes: dict[str, Any] = dict(found)
        return evolve(self, **changes)

    @property
    def of_machine(self) -> dict[str, int]:
        """The limits whose defaults follow from the machine, by name."""
        names = (each.name for each in fields(LimitSettings) if isinstance(each.default, MachineDefault))
        return {name: getattr(self, name) for name in names}

    @property
    def _left_out(self) -> list[tuple[str, MachineDefault]]:
        return [(name, value) for name, value in self.of_machine.items() if isinstance(value, MachineDefault)]

    def problem_with(self, name: str) -> str | None:
        """Returns which bound a topic or filter exceeds, in words; ``None`` for a valid one."""
        problem = self.problem_with_characters(name)
        if problem is not None:
            return problem
        if name.count("/") >= self.max_topic_levels:
            return "it has too many levels"
        return self.problem_with_length(name)

    def problem_with_topics(self, topic: str, properties: Properties) -> str | None:
        """Checks the topic and the response topic of a message; see :meth:`problem_with`."""
        problem = self.problem_with(topic)
        if problem is not None:
            return f"the topic: {problem}"
        response_topic = properties.response_topic
        problem = None if response_topic is None else self.problem_with(response_topic)
        return None if problem is None else f"the response topic: {problem}"

    def problem_with_length(self, name: str) -> str | None:
        """Checks the length of a topic or filter alone; see :meth:`problem_with`."""
        # No character takes more than four bytes in UTF-8.
        if len(name) * 4 > self.max_topic_bytes and len(name.encode("utf-8", "surrogatepass")) > self.max_topic_bytes:
            return "it is too long"
        return None

    @property
    def refuses_control_characters(self) -> bool:
        """Whether a packet with a control character or a non-character in a name is malformed."""
        return self.control_characters == "refuse"

    def problem_with_characters(self, name: str) -> str | None:
        """Returns which character is not allowed in a name, in words; ``None`` where all are."""
        found = disallowed_in(name) if self.refuses_control_characters else None
        return None if found is None else f"it has {found} in it, a control character or a non-character"

    def __attrs_post_init__(self) -> None:
        given = [watermark for name in WATERMARKS if (watermark := getattr(self, name))]
        if given != sorted(given):
            raise ValueError(
                "the watermarks must rise: memory_slow_bytes, then memory_drop_bytes, then memory_refuse_bytes"
            )
