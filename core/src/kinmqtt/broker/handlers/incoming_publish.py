"""Processing of one PUBLISH that is not forwarded unchanged, from the packet to its acknowledgement.

Each step calls the next one, at once or when a plugin or store has answered. Only :meth:`IncomingPublish._then`
waits.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import Any, Final

from attrs import evolve
from mypy_extensions import mypyc_attr
from twisted.logger import Logger

from kinmqtt.broker.connection.route import TopicRoute
from kinmqtt.broker.handlers.publish_answer import PublishAnswer
from kinmqtt.broker.message.names import check_made_names, check_names
from kinmqtt.broker.message.publication import Publication
from kinmqtt.broker.routing.fanout import Fanout
from kinmqtt.broker.routing.routed import Routed
from kinmqtt.hooks.dispatch import HookVerdict
from kinmqtt.mqtt.acknowledgements import success
from kinmqtt.mqtt.errors import ProtocolError, RemoteError
from kinmqtt.mqtt.packets import V5, PacketType
from kinmqtt.mqtt.qos_state import check_quota
from kinmqtt_spi import values
from kinmqtt_spi.properties import NO_PROPERTIES
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authorization import Action, AuthorizationRequest
from kinmqtt_spi.services.limiter import LimitDecision, LimitVerdict, Resource
from kinmqtt_spi.values import Drop, Message, Reject

log = Logger("kinmqtt.publish")

CACHED_ROUTES: Final = 1024
"""Topics whose rights and fan-out a connection caches."""

LONGEST_CACHED_BYTES: Final = 256
"""Longest topic that a connection caches, so that the cache takes 1 MB at most."""

_SUCCESS: Final = ReasonCode.SUCCESS
_PUBACK: Final = PacketType.PUBACK
_PUBREC: Final = PacketType.PUBREC
_DELIVERED: Final = Routed.DELIVERED

_TOO_LONG: Final = ""
"""Marks a topic alias whose topic was too long: later messages with that alias are refused too."""


@mypyc_attr(free_list_len=1)
class IncomingPublish(PublishAnswer):
    """One PUBLISH and the state of its processing."""

    __slots__ = ()

    def process(self, frame: bytes, body: int) -> bool | None:
        """Process the message; returns ``True`` if later packets must wait."""
        connection = self.connection
        packet = self.packet
        services = connection.services
        has_properties = packet.properties is not NO_PROPERTIES
        if has_properties:
            self._resolve_alias()
        if packet.qos and not self._admit():
            return None
        if services.limiting.topics and connection.limited_to is not None:
            # Limiters come first, so that a flood does not reach the authorizers.
            stopped = self._ask_limiters(connection.limited_to)
            if stopped is not None:
                return stopped
        if has_properties:
            problem = self._problem_with_topics()
            if problem is not None:
                self._refuse(ReasonCode.TOPIC_NAME_INVALID, problem)
                return None
        key = packet.topic.encode() if has_properties else frame[body + 2 : packet.topic_end]
        routes = connection.routes
        route = routes.get(key) if routes else None
        if route is None or (route.expires_at is not None and route.expires_at <= connection.runtime.clock.now()):
            return self._ask_for_route(key)
        return self._follow_route(route)

    def stop_by_limit(self, limit: LimitDecision) -> bool:
        """Apply a limiter's refusal; returns ``True`` if it closed the connection."""
        if self.packet.properties is not NO_PROPERTIES:
            self._resolve_alias()
        if self.packet.qos and not self._admit():
            return False
        return self._stop_by_limit(limit)

    # Before the message is accepted

    def _resolve_alias(self) -> None:
        """Resolve the topic alias (section 3.3.2.3.4), and reject properties that a client must not send."""
        connection = self.connection
        limits = connection.runtime.limits
        packet = self.packet
        properties = packet.properties
        if properties.response_topic is not None:
            check_names(limits, properties.response_topic)
        if properties.subscription_identifier:
            raise ProtocolError("a client sent a subscription identifier", "MQTT-3.3.4-6")
        alias = properties.topic_alias
        if alias is None:
            return
        if alias > connection.limits.topic_alias_maximum:
            raise RemoteError(ReasonCode.TOPIC_ALIAS_INVALID, f"topic alias {alias} is too high", "MQTT-3.3.2-9")
        if connection.aliases is None:
            connection.aliases = {}
        if packet.topic:
            too_long = limits.problem_with_length(packet.topic) is not None
            connection.aliases[alias] = _TOO_LONG if too_long else packet.topic
            return
        topic = connection.aliases.get(alias)
        if topic is None:
            raise ProtocolError(f"topic alias {alias} has no topic yet", "MQTT-3.3.2-12")
        packet.topic = topic

    def _problem_with_topics(self) -> str | None:
        """Returns what is wrong with the alias's topic or the response topic; ``None`` if nothing is."""
        packet = self.packet
        if packet.topic == _TOO_LONG:
            return "the topic of its alias: it is too long"
        response_topic = packet.properties.response_topic
        limits = self.connection.runtime.limits
        problem = None if response_topic is None else limits.problem_with(response_topic)
        return None if problem is None else f"the response topic: {problem}"

    def _admit(self) -> bool:
        """Count a QoS 1 or 2 message against the receive maximum; ``False`` for a duplicate, which is answered."""
        connection = self.connection
        packet = self.packet
        if packet.qos == 2 and packet.packet_id in self.session.incoming.packet_ids and not self._is_pending():
            return False
        connection.unacknowledged += 1
        if connection.version == V5:
            check_quota(connection.unacknowledged, connection.receive_maximum)
        return True

    def _is_pending(self) -> bool:
        """Whether a repeated QoS 2 message must be forwarded once more; otherwise the repeat is answered here."""
        packet = self.packet
        packet_id = packet.packet_id
        session = self.session
        pending = session.incoming.pending
        if pending is None or packet_id not in pending:
            self.connection.acknowledge(success(_PUBREC, packet_id), False)
            return False
        ticket = None if session.tickets is None else session.tickets.get(packet_id)
        if ticket is not None:
            self._hold_repeated(ticket)
            return False
        # An earlier process or owner of the session has forwarded it, maybe to some of the nodes only.
        self.again = pending[packet_id]
        return True

    def _ask_limiters(self, resource: Resource) -> bool | None:
        """Ask the limiters that use topics; returns ``None`` to continue."""
        connection = self.connection
        topic = self.packet.topic
        # A topic that is too long is refused anyway: limiters must not store it.
        if topic and connection.runtime.limits.problem_with_length(topic) is None:
            resource = evolve(resource, topic=topic)
        limit = connection.acquire_for_packet(resource, 1)
        if limit.verdict is LimitVerdict.ALLOW:
            return None
        if limit.verdict is LimitVerdict.DELAY:
            connection.pause_for(limit.delay_s)
            return None
        return self._stop_by_limit(limit)

    def _stop_by_limit(self, limit: LimitDecision) -> bool:
        connection = self.connection
        if limit.verdict is LimitVerdict.DISCONNECT:
            connection.fail(limit.reason, f"limited by {limit.rule}")
            return True
        if limit.verdict is LimitVerdict.DROP:
            self._acknowledge(_SUCCESS)
        else:
            if connection.version != V5:
                self._log_limited(limit.rule)
            self._refuse(limit.reason, f"limited by {limit.rule}")
        return False

    def _log_limited(self, rule: str) -> None:
        """Log a limited PUBLISH, once for each connection and rule: MQTT 3 can't report it to the client."""
        if self.connection.first_to_log(rule):
            log.info(
                "{client}: a PUBLISH is dropped, limited by {rule}; MQTT 3 can't report this to the publisher",
                client=self.connection.name,
                rule=rule,
            )

    def _ask_for_route(self, key: bytes) -> bool | None:
        """Ask whether the client may publish to the topic; ``key`` is the topic in bytes."""
        connection = self.connection
        packet = self.packet
        limits = connection.runtime.limits
        check_names(limits, packet.topic)
        problem = limits.problem_with(packet.topic)
        if problem is not None:
            denial = values.deny(ReasonCode.TOPIC_NAME_INVALID, f"the topic: {problem}")
            return self._follow_route(self._remember(key, TopicRoute(packet.topic, HookVerdict(denial, "limits"))))
        request = AuthorizationRequest(self.session.client, Action.PUBLISH, packet.topic, packet.qos, packet.retain)
        rights = connection.runtime.rights
        ruling = rights.ask(request)
        if isinstance(ruling, HookVerdict):
            rights.report_denial(request, ruling)
            return self._follow_route(self._remember(key, TopicRoute(packet.topic, ruling)))
        routes = connection.routes
        if routes is None:
            routes = connection.routes = {}
        return self._then(ruling, partial(self._authorized, key, request, routes))

    def _authorized(
        self, key: bytes, request: AuthorizationRequest, routes: dict[bytes, TopicRoute], ruling: HookVerdict
    ) -> None:
        """Continue when the authorizers have answered."""
        connection = self.connection
        connection.runtime.rights.report_denial(request, ruling)
        route = TopicRoute(self.packet.topic, ruling)
        if connection.routes is routes:  # Otherwise the rules changed meanwhile: use the answer once.
            self._remember(key, route)
        if self._is_current:
            self._follow_route(route)

    def _remember(self, key: bytes, route: TopicRoute) -> TopicRoute:
        connection = self.connection
        if route.cacheable and len(key) <= LONGEST_CACHED_BYTES:
            if connection.routes is not None and len(connection.routes) >= CACHED_ROUTES:
                connection.forget_routes()
            routes = connection.routes
            if routes is None:
                routes = connection.routes = {}
            old = routes.get(key)
            if old is not None:
                # The cached answer has expired.
                connection.services.traffic.add(self.session.client_id, old)
            routes[key] = route
            route.remembered = True
        return route

    def _follow_route(self, route: TopicRoute) -> bool | None:
        """Refuse or drop the message according to its route, or pass it to the interceptors."""
        connection = self.connection
        packet = self.packet
        services = connection.services
        route.messages += 1
        route.bytes += len(packet.frame)
        if not route.remembered:
            services.traffic.add(self.session.client_id, route)
        if route.reason is not _SUCCESS:
            self._refuse(route.reason, route.text)
            return None
        runtime = connection.runtime
        if not packet.qos and services.overload.drops:
            runtime.statistics.dropped["overload"].value += 1
            return None
        fanout = route.fanout
        if fanout is None or fanout.generation != services.fanouts.generation:
            route.refresh(services, connection.version)
            fanout = route.fanout
        publication = Publication(
            packet, connection.version, self.session.publisher, runtime.now(), runtime.message_ids
        )
        if route.intercept is not None:
            self.publication = publication
            outcome = route.intercept(self.session.client, publication.message)
            if isinstance(outcome, Awaitable):
                return self._then(outcome, self._intercepted_later)
            return self._intercepted(outcome)
        return self._accept(publication, fanout)

    def _intercepted_later(self, outcome: Any) -> None:
        if self._is_current:
            self._intercepted(outcome)

    def _intercepted(self, outcome: Any) -> bool | None:
        """Continue with the interceptors' result."""
        publication = self.publication
        if isinstance(outcome, Message) and publication is not None:
            if outcome is not publication.message:
                made = self._from_plugin(outcome, publication.message)
                if made is None:
                    return None
                publication = made
            return self._accept(publication, None)
        if isinstance(outcome, Drop):
            self._acknowledge(_SUCCESS)
        elif isinstance(outcome, Reject):
            self._refuse(outcome.reason, outcome.text)
        else:
            self.connection.fail(outcome.reason, outcome.text)
            return True
        return None

    def _from_plugin(self, message: Message, original: Message) -> Publication | None:
        """Returns a publication of the message that a plugin made from another; ``None`` if it is refused."""
        runtime = self.connection.runtime
        limits = runtime.limits
        topic = self.packet.topic
        try:
            check_made_names(limits, message, original)
            runtime.rights.spaces.check(message.topic, topic)
        except ValueError as error:
            log.error("a plugin made an invalid message from one to {topic!r}: {error}", topic=topic, error=error)
            self._refuse(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, "a plugin failed")
            return None
        problem = limits.problem_with_topics(message.topic, message.properties)
        if problem is not None:
            self._refuse(ReasonCode.TOPIC_NAME_INVALID, problem)
            return None
        return Publication.of(message)

    # After the message is accepted

    def _accept(self, publication: Publication, fanout: Fanout | None) -> bool | None:
        """Accept the message: retain and route it."""
        connection = self.connection
        packet = self.packet
        session = self.session
        if packet.retain:
            publication.epoch = session.epoch
        if packet.qos == 2:
            if self.again is not None:
                publication.use_id(self.again)
                self.publication = publication
                return self._then(connection.services.resender.route_repeated(publication), self._routed_after_wait)
            session.incoming.open(packet.packet_id)
        # If this turn's writes fail to commit, the client of a persistent session sends a QoS 2 message again with
        # the same identifier.
        publication.is_identified = packet.qos == 2 and session.persistent
        routed = connection.services.publisher.take(
            publication,
            fanout,
            after_commit=publication.is_identified,
            connection=connection if packet.qos else None,
        )
        if not isinstance(routed, Routed):
            self.publication = publication
            return self._then(routed, self._routed_after_wait)
        if packet.qos:
            if publication.ticket is None:
                self._routed(routed)
            else:
                self._hold(publication, publication.ticket, routed)
        return None
