"""Questions of limiters: whom rules concern, what they say together, and what is remembered."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable
from typing import Any, Literal

import pytest

from kinmqtt_sentinel_limiter import SentinelLimiter, SentinelSettings, _active_rules
from kinmqtt_sentinel_limiter._rules import FlowRule
from kinmqtt_sentinel_limiter._settings import FlowSettings, ParamSettings, Rules, SystemSettings
from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.limiter import LimitDecision, LimitVerdict, Resource, ResourceKind

CONNECTION, CONNECT, PUBLISH, SUBSCRIBE = ResourceKind


class Scene:
    """A limiter with rules, and its context."""

    def __init__(self, *flow: FlowSettings, param: tuple[ParamSettings, ...] = (), **settings: Any) -> None:
        self.context = BareContext("sentinel_limiter", SentinelSettings(flow=flow, param=param, **settings))
        self.clock = self.context.clock
        self.limiter = SentinelLimiter()
        self.limiter.configure(self.context)

    def ask(self, resource: Resource, amount: int = 1) -> LimitDecision | None:
        """What the limiter answers."""
        return self.limiter.acquire(resource, amount)

    def passes(self, resource: Resource, times: int) -> int:
        """How many of so many questions are answered with nothing."""
        return sum(self.ask(resource) is None for _ in range(times))

    def take(self, *flow: FlowSettings) -> list[str]:
        """Go by other rules."""
        return self.limiter._rules_in_force.take(Rules(flow=flow))

    def count(self, name: str) -> float:
        """A metric's sum."""
        return self.context.registry.sum(f"limiter.{name}")


def _publish(client: str = "c", topic: str | None = None, **fields: Any) -> Resource:
    known: dict[str, Any] = {"listener": "main", "address": "192.0.2.1", "username": "u", **fields}
    return Resource(PUBLISH, client_id=client, topic=topic, **known)


def _connect(client: str | None) -> Resource:
    return Resource(CONNECT, "main", "192.0.2.1", client, "u")


@pytest.mark.parametrize(
    ("match", "resource", "concerned"),
    [
        ({}, _publish(), True),
        ({"client": "c"}, _publish(), True),
        ({"client": "*", "user": "*", "listener": "*", "address": "*"}, _publish(), True),
        ({"client": ("a", "c")}, _publish(), True),
        ({"client": ("a", "b")}, _publish(), False),
        ({"user": "u", "listener": "main", "address": "192.0.2.1"}, _publish(), True),
        ({"user": "other"}, _publish(), False),
        ({"listener": "other"}, _publish(), False),
        ({"address": "192.0.2.2"}, _publish(), False),
        ({"topic": "a/#"}, _publish(topic="a/b"), True),
        ({"topic": ("x", "a/+")}, _publish(topic="a/b"), True),
        ({"topic": "b/#"}, _publish(topic="a/b"), False),
        ({"topic": "a/#"}, _publish(), False),
        ({"kind": CONNECT}, _publish(), False),
        ({"per": "topic"}, _publish(topic="a"), True),
        ({"per": "topic"}, _publish(), False),
        ({"per": "username"}, _publish(username=None), False),
    ],
)
def test_a_rule_concerns_whom_it_names(match: dict[str, Any], resource: Resource, concerned: bool) -> None:
    """Names are exact, a list is any of them, ``*`` is everybody; what lacks the key is nobody's."""
    scene = Scene(FlowSettings(name="r", count=1, **match))

    assert (scene.passes(resource, 3) == 1) == concerned


@pytest.mark.parametrize(
    ("per", "others"),
    [("client", 1), ("username", 0), ("address", 1), ("listener", 0), ("all", 0)],
)
def test_use_is_counted_together(per: Any, others: int) -> None:
    """Whoever shares the key shares the count; who does not has one of its own."""
    scene = Scene(FlowSettings(name="r", count=1, per=per))
    scene.ask(_publish())

    assert scene.passes(_publish("other", address="192.0.2.9"), 1) == others


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, LimitDecision(LimitVerdict.REJECT, "r")),
        ({"reason": "message_rate_too_high"}, LimitDecision(LimitVerdict.REJECT, "r", reason=ReasonCode(0x96))),
        ({"verdict": "drop"}, LimitDecision(LimitVerdict.DROP, "r")),
        ({"verdict": "disconnect"}, LimitDecision(LimitVerdict.DISCONNECT, "r")),
    ],
)
def test_an_excess_brings_the_verdict(fields: dict[str, Any], expected: LimitDecision) -> None:
    """By default 0x97; the rule's name goes with it, and the packets are counted."""
    scene = Scene(FlowSettings(name="r", count=1, **fields))
    scene.ask(_publish())

    assert scene.ask(_publish(), 3) == expected
    assert (scene.count("passed"), scene.count("blocked")) == (1, 3)


def test_a_wait_is_a_delay() -> None:
    """Of several rules that delay the longest wait is answered, with that rule's name."""
    scene = Scene(
        FlowSettings(name="fast", count=10, behaviour="pace", verdict="delay"),
        FlowSettings(name="slow", count=2, behaviour="pace", verdict="delay"),
    )
    scene.ask(_publish())

    decision = scene.ask(_publish())

    assert decision is not None
    assert (decision.verdict, decision.rule) == (LimitVerdict.DELAY, "slow")
    assert decision.delay_s == pytest.approx(0.5)
    assert scene.count("delayed") == 1


def test_what_one_rule_refuses_costs_no_other() -> None:
    """All or nothing: the count of the others is untouched."""
    scene = Scene(
        FlowSettings(name="wide", count=5, per="all"),
        FlowSettings(name="warm", count=1000, per="all", behaviour="warm_up"),
        FlowSettings(name="narrow", count=1),
    )

    assert scene.passes(_publish("a"), 100) == 1
    scene.clock.advance(0.5)
    assert [scene.passes(_publish(client), 9) for client in "bcdef"] == [1, 1, 1, 1, 0]


def test_in_the_shadow_nothing_is_refused() -> None:
    """What would have been is counted under the rule's name, and the other rules go on."""
    scene = Scene(
        FlowSettings(name="trial", count=2, shadow=True),
        FlowSettings(name="slow trial", count=1, shadow=True, verdict="delay"),
        FlowSettings(name="real", count=7),
    )

    assert scene.passes(_publish(), 10) == 7
    assert scene.count("blocked") == 3
    assert scene.count("shadow_blocked") == 8 + 9


def test_concurrency_in_the_shadow_counts_what_it_lets_pass() -> None:
    """What is let in beyond the count is given back too, so that the count does not drift."""
    scene = Scene(FlowSettings(name="r", count=2, grade="concurrency", shadow=True))
    resource = _publish()
    assert scene.passes(resource, 5) == 5

    for _ in range(4):
        scene.limiter.release(resource, 1)
    scene.passes(resource, 2)

    assert scene.count("shadow_blocked") == 3 + 1


@pytest.mark.parametrize("kind", list(ResourceKind))
def test_what_is_over_makes_room(kind: ResourceKind) -> None:
    """For each kind: so many at once, and one more for each that is released, with an equal resource."""
    scene = Scene(FlowSettings(name="r", kind=kind, count=2, grade="concurrency", per="address"))
    fields = {"client_id": "c"} if kind in (PUBLISH, SUBSCRIBE) else {}

    def one() -> Resource:
        return Resource(kind, "main", "192.0.2.1", **fields)

    assert scene.passes(one(), 3) == 2
    scene.limiter.release(one(), 1)
    assert scene.passes(one(), 3) == 1


def test_a_new_concurrency_knows_who_is_there() -> None:
    """A rule that comes by a reload counts the connections that are open already."""
    old = FlowSettings(name="old", kind=CONNECT, count=100, grade="concurrency", per="all")
    scene = Scene(old)
    for there, passing, more in (([None] * 3, [None] * 3, [None] * 5), ("abc", "def", "ghijk")):
        scene.take(old)
        clients = [_connect(name) for name in there]
        assert all(scene.ask(client) is None for client in clients)
        scene.limiter.release(clients.pop(), 1)

        scene.take(old, FlowSettings(name="new", kind=CONNECT, count=3, grade="concurrency", per="username"))

        passed = [client for client in map(_connect, passing) if scene.ask(client) is None]
        assert len(passed) == 1
        for client in clients + passed:
            scene.limiter.release(client, 1)
        passed = [client for client in map(_connect, more) if scene.ask(client) is None]
        assert len(passed) == 3
        for client in passed:
            scene.limiter.release(client, 1)


@pytest.mark.parametrize("kind", [PUBLISH, SUBSCRIBE])
@pytest.mark.parametrize("topic", [None, "t"])
def test_a_changed_concurrency_knows_what_is_in_hand(kind: ResourceKind, topic: str | None) -> None:
    """What was taken before a reload is counted by the rule that comes with it, and given back to that one."""
    fields: dict[str, Any] = {"kind": kind, "count": 2, "grade": "concurrency"}
    scene = Scene(FlowSettings(name="r", **fields), watch_topics=True)
    resource = Resource(kind, "main", "192.0.2.1", "c", "u", topic if kind is PUBLISH else None)
    other = Resource(kind, "main", "192.0.2.1", "d", "u", topic if kind is PUBLISH else None)
    assert scene.passes(resource, 3) == 2
    assert scene.passes(other, 3) == 2

    scene.take(FlowSettings(name="r", reason="server_busy", **fields))

    assert scene.passes(resource, 2) == 0
    scene.limiter.release(resource, 1)
    assert scene.passes(resource, 2) == 1
    for _ in range(2):
        scene.limiter.release(resource, 1)
    assert scene.passes(resource, 5) == 2
    assert scene.limiter._rules_in_force.in_use() == {resource: 2, other: 2}


def test_a_concurrency_that_comes_back_knows_what_is_in_hand() -> None:
    """Also what came while it was not there; and what is over by then does not count."""
    rule = FlowSettings(name="r", count=3, grade="concurrency")
    scene = Scene(rule)
    resource = _publish()
    scene.ask(resource, 2)
    scene.take()
    scene.ask(resource, 2)
    scene.limiter.release(resource, 2)

    scene.take(rule)

    assert scene.passes(resource, 3) == 1
    scene.limiter.release(resource, 2)
    assert scene.passes(resource, 3) == 2


def test_a_new_system_rule_knows_what_is_in_hand() -> None:
    """A bound for all packets together, and what the broker is able to do."""
    scene = Scene(FlowSettings(name="r", count=100, grade="concurrency"))
    resource = _publish()
    scene.ask(resource, 3)

    scene.limiter._rules_in_force.take(
        Rules(
            flow=(FlowSettings(name="r", count=100, grade="concurrency"),),
            system=(
                SystemSettings(name="s", metric="publish_concurrency", threshold=5, kinds=(PUBLISH,)),
                SystemSettings(name="a", metric="cpu", threshold=0.5, kinds=(PUBLISH,), adaptive=True),
            ),
        )
    )

    assert scene.limiter._rules_in_force._load.in_hand == 3
    assert scene.passes(resource, 9) == 2
    for amount in (3, 1, 1):
        scene.limiter.release(resource, amount)
    assert scene.limiter._rules_in_force._load.in_hand == 0
    assert scene.passes(resource, 9) == 5


def test_what_is_in_use_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that came and went, and those that were refused, are in no book."""
    monkeypatch.setattr(_active_rules, "MAX_PLANS", 4)
    rules = [
        FlowSettings(name=kind.value, kind=kind, count=1, grade="concurrency", per="all") for kind in ResourceKind
    ]
    scene = Scene(*rules)
    for number in range(50):
        for resource in (_publish(f"c{number}"), _publish(f"c{number}", "t"), _connect(f"c{number}")):
            if scene.ask(resource) is None:
                scene.limiter.release(resource, 1)
    held = [_publish("held"), _connect("held")]
    assert [scene.ask(resource) for resource in held] == [None, None]

    for number in range(50):
        for resource in (_publish(f"c{number}"), _publish(f"c{number}", "t"), _connect(f"c{number}")):
            assert scene.ask(resource) is not None

    assert len(scene.limiter._rules_in_force._use_counters) <= 12
    assert scene.limiter._rules_in_force.in_use() == dict.fromkeys(held, 1)


def test_another_bound_for_keys_holds_for_rules_that_stay() -> None:
    """More are remembered, or fewer at once: those with the least use go, and what is held stays."""
    held = FlowSettings(name="held", kind=CONNECT, count=1, grade="concurrency", per="username")
    scene = Scene(FlowSettings(name="r", count=1), held, max_keys=8)
    rules = scene.limiter._rules_in_force._rules
    rule, holding = rules["r"], rules["held"]
    assert isinstance(rule, FlowRule) and isinstance(holding, FlowRule)
    users = [Resource(CONNECT, "main", "192.0.2.1", None, f"u{number}") for number in range(20)]
    clients = [_publish(f"c{number}") for number in range(40)]

    scene.limiter._rules_in_force.resize(32)
    for number, client in enumerate(clients[:32]):
        scene.ask(client, 1 + number)
    for user in users:
        scene.ask(user)
    wide = len(rule.table.cells)
    scene.limiter._rules_in_force.resize(8)

    assert wide == 32
    assert set(rule.table.cells) == {f"c{number}" for number in range(24, 32)}
    assert len(holding.table.cells) == 20
    assert [scene.ask(client) is None for client in (clients[31], clients[0])] == [False, True]


def test_a_client_that_comes_again_takes_its_own_place() -> None:
    """A used up rule locks nobody out whose old connection is still open, and in the end nothing is lost or won."""
    rule = FlowSettings(name="r", kind=CONNECT, count=2, grade="concurrency", per="username")
    scene = Scene(rule, FlowSettings(name="all", kind=CONNECT, count=3, grade="concurrency", per="all"))

    assert [scene.ask(_connect(name)) is None for name in "aabbac"] == [True] * 5 + [False]
    for name in "aab":
        scene.limiter.release(_connect(name), 1)
    assert [scene.ask(_connect(name)) is None for name in "cab"] == [False, True, True]
    for name in "aab":
        scene.limiter.release(_connect(name), 1)
    assert [scene.ask(_connect(name)) is None for name in "cd"] == [True, False]
    for name in "bc":
        scene.limiter.release(_connect(name), 1)

    assert scene.passes(_connect(None), 5) == 2
    assert scene.limiter._rules_in_force.in_use() == {_connect(None): 2}


def test_a_client_that_comes_again_is_counted_once_in_the_shadow() -> None:
    """What a rule in the shadow would have refused is given back, too."""
    scene = Scene(FlowSettings(name="r", kind=CONNECT, count=1, grade="concurrency", per="all", shadow=True))

    for name in "abba":
        assert scene.ask(_connect(name)) is None
    assert scene.count("shadow_blocked") == 1
    for name in "abba":
        scene.limiter.release(_connect(name), 1)
    scene.ask(_connect("c"))

    assert scene.count("shadow_blocked") == 1


def test_a_reload_keeps_the_state_of_what_did_not_change() -> None:
    """An unchanged rule goes on where it was; a changed one begins anew."""
    same, changed = FlowSettings(name="same", count=5), FlowSettings(name="changed", count=3, per="all")
    scene = Scene(same, changed)
    assert scene.passes(_publish("a"), 9) == 3

    scene.take(same, FlowSettings(name="changed", count=4, per="all"))

    assert scene.passes(_publish("a"), 9) == 2


def test_rules_that_are_not_asked_for_wait() -> None:
    """A kind, topics or an end that was not asked for at the start is named, and the rule is not in force."""
    scene = Scene(FlowSettings(name="r", count=5))

    sentences = scene.take(
        FlowSettings(name="kind", kind=SUBSCRIBE, count=1),
        FlowSettings(name="topics", per="topic", count=1),
        FlowSettings(name="ends", count=1, grade="concurrency"),
    )

    assert sentences == [
        'rule "kind" is not in force: no rule was about subscribe at the start',
        'rule "topics" is not in force: topics are not watched (watch_topics)',
        'rule "ends" is not in force: the broker does not report when publish is over (watch_concurrency)',
    ]
    assert scene.passes(_publish(topic="a"), 5) == 5


def test_keys_are_bounded() -> None:
    """A flood of clients never makes a rule remember more than ``max_keys``, and who is in debt stays."""
    scene = Scene(FlowSettings(name="r", count=1), max_keys=64)
    rule = scene.limiter._rules_in_force._rules["r"]
    assert isinstance(rule, FlowRule)
    scene.ask(_publish("heavy"), 1000)

    for number in range(2000):
        scene.ask(_publish(f"new-{number}"))
        assert len(rule.table.cells) <= 64

    assert scene.passes(_publish("heavy"), 3) == 0


def test_keys_that_are_held_stay() -> None:
    """A concurrency forgets nobody who has something to give back, however many there are."""
    rule = FlowSettings(name="r", kind=CONNECT, count=1, grade="concurrency", per="username")
    scene = Scene(rule, max_keys=8)
    clients = [Resource(CONNECT, "main", "192.0.2.1", None, f"u{number}") for number in range(100)]

    assert sum(scene.passes(client, 2) for client in clients) == 100
    assert sum(scene.passes(client, 2) for client in clients) == 0
    for client in clients:
        scene.limiter.release(client, 1)
    scene.limiter._rules_in_force.sweep(scene.clock.monotonic())
    held = scene.limiter._rules_in_force._rules["r"]
    assert isinstance(held, FlowRule)
    assert held.table.cells == {}
    assert scene.limiter._rules_in_force.in_use() == {}


def test_idle_keys_are_forgotten() -> None:
    """A sweep drops what is as good as new, and who comes again finds the same as before."""
    scene = Scene(FlowSettings(name="r", count=2))
    resource = _publish()
    rule = scene.limiter._rules_in_force._rules["r"]
    assert isinstance(rule, FlowRule)
    scene.passes(resource, 5)
    scene.clock.advance(5)

    scene.limiter._rules_in_force.sweep(scene.clock.monotonic())

    assert rule.table.cells == {}
    assert scene.passes(resource, 5) == 2


@pytest.mark.parametrize("behaviour", ["reject", "warm_up", "pace", "warm_up_pace"])
def test_who_shares_a_key_shares_it_after_it_was_forgotten(behaviour: Any) -> None:
    """Two connections of a user that the limiter knows from before count together again, with nothing taken twice."""
    scene = Scene(
        FlowSettings(name="all", count=1000, per="all", burst=1000),
        FlowSettings(name="r", count=4, per="username", behaviour=behaviour, warm_up_s=0.1, max_queueing_s=0),
    )
    first, second = _publish("a"), _publish("b")
    scene.ask(first)
    scene.ask(second)
    scene.clock.advance(60)

    scene.limiter._rules_in_force.sweep(scene.clock.monotonic())
    cells = [rule.table.cells for rule in scene.limiter._rules_in_force._rules.values() if isinstance(rule, FlowRule)]
    swept, before = [len(of_rule) for of_rule in cells], scene.count("passed")
    scene.ask(first)
    scene.ask(second)

    assert swept == [0, 0]
    assert scene.limiter._rules_in_force._plans[id(first)] == scene.limiter._rules_in_force._plans[id(second)]
    assert scene.limiter._rules_in_force._plans[id(first)] == (cells[0][""], cells[1]["u"])
    assert cells[0][""].spent(60.0) * 1000 == pytest.approx(scene.count("passed") - before, abs=0.01)


def test_what_was_taken_before_a_forgotten_key_is_given_back() -> None:
    """Where a later rule's key was forgotten, the earlier rules are asked anew and count once."""
    scene = Scene(FlowSettings(name="all", count=10, per="all"), FlowSettings(name="r", count=1))
    resource, other = _publish("a"), _publish("b")
    scene.ask(resource)
    scene.clock.advance(2.5)
    scene.ask(other)
    scene.limiter._rules_in_force.sweep(scene.clock.monotonic())
    rule = scene.limiter._rules_in_force._rules["all"]
    assert isinstance(rule, FlowRule)

    answer = scene.ask(resource)

    assert answer is None
    assert rule.table.cells[""].left == 10 - 2  # type: ignore[attr-defined]


def test_a_long_table_is_swept_bit_by_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tick looks at more keys than it should, and all are come to."""
    monkeypatch.setattr("kinmqtt_sentinel_limiter._rules.SWEEP_KEYS", 10)
    scene = Scene(FlowSettings(name="r", count=1))
    for number in range(25):
        scene.ask(_publish(f"c{number}"))
    scene.limiter._rules_in_force.sweep(scene.clock.monotonic())  # Nothing has come since, so there is no hurry.
    scene.clock.advance(60)
    rule = scene.limiter._rules_in_force._rules["r"]
    assert isinstance(rule, FlowRule)

    left = []
    for _ in range(3):
        scene.limiter._rules_in_force.sweep(scene.clock.monotonic())
        left.append(len(rule.table.cells))

    assert left == [15, 5, 0]


def test_plans_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """More resources than are remembered cost time and never the right answer."""
    monkeypatch.setattr(_active_rules, "MAX_PLANS", 4)
    scene = Scene(FlowSettings(name="r", count=2), FlowSettings(name="t", count=1, per="topic"))
    clients = [_publish(f"c{number}") for number in range(10)]
    topics = [_publish(f"d{number}", topic=f"t{number}") for number in range(10)]

    answers = [scene.ask(resource) for _ in range(3) for resource in clients + topics]

    assert [answer is None for answer in answers] == [True] * 30 + [False] * 30
    assert len(scene.limiter._rules_in_force._plans) <= 4
    assert len(scene.limiter._rules_in_force._topic_plans) <= 4


def test_hot_parameters_are_limited_each() -> None:
    """A parameter rule stands beside flow rules, with verdicts and shadow like theirs."""
    scene = Scene(
        param=(
            ParamSettings(name="p", param="topic", count=2, items={"free": 100.0}),
            ParamSettings(name="q", param="client", count=5, shadow=True),
        )
    )

    assert [scene.passes(_publish(topic=topic), 8) for topic in ("a", "b", "free")] == [2, 2, 8]
    assert scene.count("shadow_blocked") > 0


def test_paced_parameters_delay() -> None:
    """Control behaviour ``pace`` holds for hot parameters too."""
    scene = Scene(param=(ParamSettings(name="p", param="client", count=10, behaviour="pace"),))
    scene.ask(_publish())

    decision = scene.ask(_publish())

    assert decision is not None
    assert decision.delay_s == pytest.approx(0.1)


def _kept_bytes(scene: Scene, resources: Iterable[Resource], ends: bool = False) -> int:
    """What is remembered of resources that ask once each, and perhaps come to their end."""
    tracemalloc.start()
    try:
        for resource in resources:
            scene.ask(resource)
            if ends:
                scene.limiter.release(resource, 1)
        del resource
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("per", ["all", "client", "topic"])
def test_long_topics_are_not_kept(per: Literal["all", "client", "topic"]) -> None:
    """They are limited as others are, and no more than a digest is remembered of them."""
    scene = Scene(FlowSettings(name="r", count=1, topic="#", per=per))

    kept = _kept_bytes(scene, (_publish(topic=f"{number:060000}") for number in range(300)))

    assert kept < 1_000_000
    assert scene.passes(_publish(topic=f"{7:060000}"), 1) == 0


@pytest.mark.parametrize("grade", ["rate", "concurrency"])
def test_long_topics_whose_end_is_told_are_not_kept(grade: Literal["rate", "concurrency"]) -> None:
    """What they have in use is given back, and then nothing is left of them."""
    settings = FlowSettings(name="r", count=1, topic="#", grade=grade, per="topic")
    scene = Scene(settings, FlowSettings(name="s", count=1, grade="concurrency", topic="#", per="client"))
    topics = [f"{number:060000}" for number in range(300)]

    kept = _kept_bytes(scene, (_publish(topic=topic + "/x") for topic in topics), ends=True)
    scene.clock.advance(10.0)

    assert kept < 1_000_000
    assert scene.limiter._rules_in_force.in_use() == {}
    assert scene.passes(_publish(topic=topics[0]), 2) == 1


@pytest.mark.parametrize("kind", [CONNECT, PUBLISH])
def test_long_client_ids_are_keyed_by_a_digest(kind: ResourceKind) -> None:
    """Nobody knows yet who sends them; each still counts for itself."""
    flow = FlowSettings(name="r", kind=kind, count=1, per="client")
    param = ParamSettings(name="p", kind=kind, count=1, param="client", behaviour="reject")
    scene = Scene(flow, param=(param,))

    def resource(number: int) -> Resource:
        return Resource(kind, "main", "192.0.2.1", f"{number:060000}", "u")

    kept = _kept_bytes(scene, (resource(number) for number in range(300)))

    assert kept < 1_000_000
    assert [scene.passes(resource(number), 2) for number in (299, 300)] == [0, 1]


def test_clients_with_long_ids_are_counted_once() -> None:
    """Where a rule counts clients, by a digest as well."""
    scene = Scene(FlowSettings(name="r", kind=CONNECT, count=1, grade="concurrency", per="address"))
    long = "x" * 60_000

    assert scene.passes(_connect(long), 2) == 2
    assert scene.passes(_connect(long + "y"), 1) == 0


def test_exceptions_may_have_long_names() -> None:
    """They are found by the same digest."""
    long = "x" * 1000
    param = ParamSettings(name="p", count=1, param="username", items={long: 3.0}, behaviour="reject")
    scene = Scene(param=(param,))

    assert scene.passes(_publish(username=long), 9) == 3


def test_plans_are_bounded_in_bytes() -> None:
    """Names that are just short enough to be remembered take no more than they may together."""
    scene = Scene(FlowSettings(name="r", count=1, topic="#"))

    kept = _kept_bytes(scene, (_publish(topic=f"\U0001f600{number:01000}") for number in range(12_000)))

    assert kept < 1.5 * _active_rules.MAX_PLAN_BYTES


def test_idle_plans_are_dropped() -> None:
    """Of topics and of connections; what is in use is still known."""
    scene = Scene(FlowSettings(name="r", count=100, grade="concurrency", topic="#"))
    limits = scene.limiter._rules_in_force
    for number in range(100):
        scene.ask(_publish(topic=f"t/{number}"))
        scene.ask(_publish(f"c{number}"))
    scene.limiter.release(_publish(topic="t/7"), 1)

    scene.clock.advance(30)
    limits.age(scene.clock.monotonic())
    young = len(limits._topic_plans)
    scene.clock.advance(30)
    limits.age(scene.clock.monotonic())

    assert young == 100
    assert not limits._topic_plans and not limits._pinned and not limits._plans
    assert len(limits.in_use()) == len(limits._use_counters) == 199
