"""What all links of this node share: its identity, its listener, its routes, and how answers are awaited."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from traceback import format_exception
from typing import Any

from attrs import define, field

from kinmqtt_spi.errors import MalformedBatch, ServiceUnavailable
from kinmqtt_spi.mesh.link import LinkLimits
from kinmqtt_spi.mesh.results import Result, Run
from kinmqtt_spi.mesh.routes import RouteLog
from kinmqtt_spi.services.cluster import ClusterListener, MemberState
from kinmqtt_spi.services.plugin import Clock, Log
from kinmqtt_spi.values import Maybe, NodeIdentity


@define(slots=True, eq=False)
class Local:
    """This node."""

    node: NodeIdentity
    listener: ClusterListener
    clock: Clock
    log: Log
    run: Run
    new_result: Callable[[], Result]
    limits: LinkLimits
    backend_asked: Callable[[NodeIdentity, bytes], Maybe[bytes]]
    """Answers the questions of other nodes' backends."""
    state: MemberState = MemberState.JOINING
    routes: RouteLog = field(factory=RouteLog)

    def finish(
        self,
        call: Callable[[], Maybe[Any]],
        done: Callable[[Any], None],
        failed: Callable[[ServiceUnavailable], None],
    ) -> None:
        """Make a call of the listener, and pass on its result or its failure, now or later.

        A failure other than ServiceUnavailable is a defect, which is logged. An error that is raised at once and says
        that the peer sent nonsense is raised here.
        """

        def fail(error: Exception) -> None:
            failed(self.unavailable(error))

        try:
            answer = call()
        except MalformedBatch:
            raise
        except Exception as error:
            fail(error)
            return
        if isinstance(answer, Awaitable):
            self.run(answer, done, fail)
        else:
            done(answer)

    def unavailable(self, error: Exception) -> ServiceUnavailable:
        """Return an error of the listener as another node may see it; a defect is logged."""
        if isinstance(error, ServiceUnavailable):
            return error
        trace = "".join(format_exception(error))
        self.log.error("a call from another node failed: {error!r}\n{trace}", error=error, trace=trace)
        return ServiceUnavailable(f"node {self.node.name} failed: {type(error).__name__}")
