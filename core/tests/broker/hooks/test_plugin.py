"""The hooks of a plugin's own life, through a whole broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from attrs import frozen
from twisted.internet.defer import Deferred, succeed

from core_harness.house import House
from kinmqtt.mqtt.packets import V5
from kinmqtt.settings import LimitSettings
from kinmqtt_spi import ALLOW, SPI_VERSION, Decision, ReasonCode, hookimpl
from kinmqtt_spi.errors import AssemblyError, CallAbandoned, CallStopped, NotConfigured, SettingsError
from kinmqtt_spi.memory.cluster import SingleNode
from kinmqtt_spi.memory.session import MemorySessionStore
from kinmqtt_spi.services.plugin import CallGuard, Context, Health, HealthState, Requirements


def broken(*_: Any) -> Any:
    """What a broken plugin does."""
    raise ValueError("broken")


async def broken_later(*_: Any) -> Any:
    """What a broken plugin does that answers later."""
    raise ValueError("broken")


async def coroutine(value: Any) -> Any:
    """A coroutine's answer."""
    return value


class Living:
    """Writes down what happens to it; a test may say what it answers in some hook."""

    def __init__(self, diary: list[str], name: str, **answers: Callable[[], Any]) -> None:
        self.diary = diary
        self.name = name
        self.answers = answers

    def say(self, what: str) -> Any:
        self.diary.append(f"{self.name} {what}")
        return self.answers.get(what, lambda: None)()

    @hookimpl
    def configure(self, context: Context) -> Any:
        assert context.name == self.name
        return self.say("configure")

    @hookimpl
    def start(self, context: Context) -> Any:
        assert context.name == self.name
        return self.say("start")

    @hookimpl
    def ready(self) -> Any:
        return self.say("ready")

    @hookimpl
    def drain(self, deadline_s: float) -> Any:
        assert deadline_s > 0
        return self.say("drain")

    @hookimpl
    def stop(self) -> Any:
        return self.say("stop")


def living(diary: list[str], **plugins: dict[str, Callable[[], Any]]) -> dict[str, Living]:
    """Plugins by name, with what they answer."""
    return {name: Living(diary, name, **answers) for name, answers in plugins.items()}


def whole_life(plugins: dict[str, Any], **options: Any) -> House:
    """A broker that was started and stopped again."""
    house = House(plugins=plugins, **options)
    house.result(house.broker.ready())
    house.result(house.broker.stop())
    return house


def test_life_goes_from_configure_to_stop() -> None:
    """Each step is taken in the order of the settings, and the last in reverse."""
    diary: list[str] = []

    whole_life(living(diary, a={}, b={}), order=("b", "a"))

    assert diary == [
        "b configure",
        "a configure",
        "b start",
        "a start",
        "b ready",
        "a ready",
        "b drain",
        "a drain",
        "a stop",
        "b stop",
    ]


# requirements


class Demanding:
    """Needs something of the broker."""

    def __init__(self, needs: Callable[[], Any]) -> None:
        self.needs = needs

    @hookimpl
    def requirements(self) -> Any:
        return self.needs()


def test_requirements_that_hold_let_the_broker_start() -> None:
    """The version of the SPI, the reactor and other plugins are as asked for."""
    needs = Requirements(SPI_VERSION, reactor="asyncio", plugins=("memory",))

    house = House(plugins={"demanding": Demanding(lambda: needs)}, reactor="asyncio")

    assert "demanding" in house.assembly.manager.active


@pytest.mark.parametrize(
    ("needs", "complaint"),
    [
        (Requirements(SPI_VERSION + 1), f"written for version {SPI_VERSION + 1} of the SPI"),
        (Requirements(SPI_VERSION, reactor="asyncio"), "needs the asyncio reactor, but the broker runs on epoll"),
        (Requirements(SPI_VERSION, plugins=("redis",)), "needs plugin 'redis', which is not active"),
    ],
)
def test_requirements_that_can_not_hold_are_refused(needs: Requirements, complaint: str) -> None:
    """Before anything is configured the broker says which plugin asks for too much."""
    diary: list[str] = []

    with pytest.raises(AssemblyError, match=f"plugin 'demanding' .*{complaint}"):
        plugins = {**living(diary, a={}), "demanding": Demanding(lambda: needs)}
        House(plugins=plugins, order=("demanding",), reactor="epoll")

    assert diary == []


def test_requirements_count_a_plugin_that_turns_out_not_to_be_configured_as_absent() -> None:
    """Who needs a plugin needs one that acts."""

    class Unready:
        @hookimpl
        def configure(self) -> None:
            raise NotConfigured("no url")

    needs = Requirements(SPI_VERSION, plugins=("unready",))

    with pytest.raises(AssemblyError, match="plugin 'demanding' needs plugin 'unready', which is not active"):
        House(plugins={"demanding": Demanding(lambda: needs), "unready": Unready()})


@pytest.mark.parametrize("answer", [broken, lambda: None, lambda: succeed(Requirements(SPI_VERSION))])
def test_requirements_that_fail_stop_the_assembly(answer: Callable[[], Any]) -> None:
    """A plugin that can't say what it needs is named."""
    with pytest.raises(AssemblyError, match="plugin 'demanding'"):
        House(plugins={"demanding": Demanding(answer)})


# settings_class


@frozen
class UrlSettings:
    """What a plugin wants to be told."""

    url: str = "default"


class Configured:
    """Has settings of its own."""

    def __init__(self, settings_class: Callable[[], Any] = lambda: UrlSettings) -> None:
        self._settings_class = settings_class
        self.settings: Any = "not yet"

    @hookimpl
    def settings_class(self) -> Any:
        return self._settings_class()

    @hookimpl
    def configure(self, context: Context) -> None:
        self.settings = context.settings


def test_settings_class_says_what_configure_gets() -> None:
    """Each plugin's section is parsed into its own class; a plugin without the hook gets none."""
    with_settings, defaults = Configured(), Configured()
    seen = []

    class Without:
        @hookimpl
        def configure(self, context: Context) -> None:
            seen.append(context.settings)

    House(
        plugins={"a": with_settings, "b": defaults, "c": Without()},
        plugin_settings={"a": UrlSettings("redis://here")},
    )

    assert (with_settings.settings, defaults.settings) == (UrlSettings("redis://here"), UrlSettings())
    assert seen == [None]


@pytest.mark.parametrize("answer", [broken, lambda: succeed(UrlSettings)])
def test_settings_class_that_fails_stops_the_assembly(answer: Callable[[], Any]) -> None:
    """A plugin that has no class to give is named."""
    with pytest.raises(AssemblyError, match="plugin 'bad' failed in settings_class"):
        House(plugins={"bad": Configured(answer)})


# configure


def test_configure_may_abstain() -> None:
    """An installed plugin that is not configured takes part in nothing, and the broker starts."""
    diary: list[str] = []

    def not_configured() -> None:
        raise NotConfigured("no password file")

    house = whole_life(living(diary, a={"configure": not_configured}, b={}))

    assert [line for line in diary if line.startswith("a")] == ["a configure"]
    assert "a" not in house.assembly.manager.active
    [choice] = [choice for choice in house.assembly.manager.choices if choice.candidate.name == "a"]
    assert (choice.active, choice.why) == (False, "not configured: no password file")


def test_configure_of_an_abstaining_plugin_silences_all_its_hooks() -> None:
    """A guard that abstains is as if it were not installed."""

    class Guard:
        @hookimpl
        def configure(self) -> None:
            raise NotConfigured("no password file")

        @hookimpl
        def authorize(self) -> Decision:
            raise AssertionError("asked all the same")

    peer = House(plugins={"guard": Guard()}).connect("c").subscribe("a").publish("a", b"x")

    assert peer.messages == [("a", b"x", 0)]


@pytest.mark.parametrize("how", [{"order": ("a",)}, {"services": {"queue": "a"}}])
def test_configure_of_a_named_plugin_must_not_abstain(how: dict[str, Any]) -> None:
    """A guard must not vanish quietly: where the settings name the plugin, the broker does not start."""

    def not_configured() -> None:
        raise NotConfigured("no password file")

    with pytest.raises(AssemblyError, match="plugin 'a' is named in the settings but not configured: no password"):
        House(plugins=living([], a={"configure": not_configured}), **how)


@pytest.mark.parametrize("answer", [broken, lambda: succeed(None), lambda: coroutine(None)])
def test_configure_that_fails_stops_the_assembly(answer: Callable[[], Any]) -> None:
    """Anything but NotConfigured is a mistake, an answer to wait for among them; nothing was started by then."""
    diary: list[str] = []

    with pytest.raises(AssemblyError, match="plugin 'b' can't be configured"):
        House(plugins=living(diary, a={}, b={"configure": answer}))

    assert diary == ["a configure", "b configure"]


def test_configure_may_complain_of_settings() -> None:
    """Mistakes that only the plugin can see are shown as those of the settings file are."""

    def complain() -> None:
        raise SettingsError(["plugins.a.url: no such host"])

    with pytest.raises(SettingsError, match="no such host"):
        House(plugins=living([], a={"configure": complain}))


# start


def test_start_may_be_awaited() -> None:
    """One plugin after the other: the second starts when the first has."""
    diary: list[str] = []
    answer: Deferred[None] = Deferred()
    house = House(plugins=living(diary, a={"start": lambda: answer}, b={}), start=False)
    started = Deferred.fromCoroutine(house.broker.start())
    assert diary[-1] == "a start"
    assert not started.called

    answer.callback(None)
    house.settle()

    assert diary[-1] == "b start"
    assert started.called


@pytest.mark.parametrize("answer", [broken, broken_later])
def test_start_that_fails_stops_those_started(answer: Callable[[], Any]) -> None:
    """The broker does not start and names the plugin; every plugin whose start was called is stopped, in reverse."""
    diary: list[str] = []
    house = House(plugins=living(diary, a={}, b={"start": answer}, c={}), start=False)
    diary.clear()

    with pytest.raises(AssemblyError, match="plugin 'b' can't start: ValueError: broken"):
        house.result(house.broker.start())

    assert diary == ["a start", "b start", "b stop", "a stop"]


def test_start_has_a_minute() -> None:
    """A plugin that takes longer has failed."""
    diary: list[str] = []
    house = House(plugins=living(diary, a={"start": Deferred}), start=False)
    failures: list[Any] = []
    Deferred.fromCoroutine(house.broker.start()).addErrback(failures.append)

    house.advance(61)

    assert "plugin 'a' can't start: TimeLimitExceeded" in str(failures[0].value)
    assert diary[-1] == "a stop"


# ready, drain, stop


@pytest.mark.parametrize("step", ["ready", "drain", "stop"])
@pytest.mark.parametrize("answer", [broken, broken_later])
def test_ready_drain_and_stop_that_fail_are_counted(step: str, answer: Callable[[], Any]) -> None:
    """The other plugins are told all the same, and life goes on to its end."""
    diary: list[str] = []

    house = whole_life(living(diary, a={step: answer}, b={step: answer}))

    assert [line for line in diary if line.endswith(step)] == (
        [f"b {step}", f"a {step}"] if step == "stop" else [f"a {step}", f"b {step}"]
    )
    assert diary[-1] == "a stop"
    assert house.assembly.metrics.sum("plugin.failures") == 2


def test_drain_is_asked_of_all_at_once() -> None:
    """No plugin waits for another to have drained; the plugins are stopped when all have."""
    diary: list[str] = []
    answers: list[Deferred[None]] = [Deferred(), Deferred()]
    house = House(plugins=living(diary, a={"drain": lambda: answers[0]}, b={"drain": lambda: answers[1]}))
    stopped = Deferred.fromCoroutine(house.broker.stop())
    house.settle()
    assert diary[-2:] == ["a drain", "b drain"]

    answers[1].callback(None)
    house.settle()
    assert diary[-1] == "b drain"
    answers[0].callback(None)
    house.settle()

    assert diary[-2:] == ["b stop", "a stop"]
    assert stopped.called


def test_drain_ends_at_its_deadline() -> None:
    """The plugins that have not drained by then are stopped all the same; all have the same deadline."""
    diary: list[str] = []
    deadlines = []

    class Watcher:
        @hookimpl
        def drain(self, deadline_s: float) -> None:
            deadlines.append(deadline_s)

    plugins = {**living(diary, a={"drain": Deferred}, b={"drain": Deferred}), "watcher": Watcher()}
    house = House(plugins=plugins)
    stopped: Any = Deferred.fromCoroutine(house.broker.stop())
    house.settle()
    house.advance(deadlines[0] - 1)
    assert not stopped.called

    house.advance(1)

    assert stopped.called
    assert stopped.result is None
    assert diary[-2:] == ["b stop", "a stop"]
    assert house.assembly.metrics.sum("plugin.failures") == 2


def test_drain_comes_when_the_clients_are_gone() -> None:
    """By then each client has been sent away."""
    closed = []

    class Watcher:
        @hookimpl
        def drain(self) -> None:
            closed.append(house.peers[0].closed)

    house = House(plugins={"watcher": Watcher()})
    house.connect("c")

    house.result(house.broker.stop())

    assert closed == [True]


def test_stop_goes_on_without_a_store_that_answers() -> None:
    """A commit that never comes, or a backend that fails to leave, keeps no plugin from being stopped."""

    class Hung(MemorySessionStore):
        def apply(self, writes: Any) -> Any:
            return Deferred()

    class Stuck(SingleNode):
        def leave(self, deadline_s: float) -> None:
            broken()

    class Provider:
        @hookimpl
        def session_store(self, context: Context) -> Any:
            return Hung()

        @hookimpl
        def cluster_backend(self, context: Context) -> Any:
            return Stuck()

    diary: list[str] = []
    house = House(plugins={"provider": Provider(), **living(diary, a={})})
    house.connect("c", clean_start=False)
    stopped = Deferred.fromCoroutine(house.broker.stop())

    house.advance(11)

    assert stopped.called
    assert diary[-2:] == ["a drain", "a stop"]


def test_stop_is_also_for_plugins_that_have_nothing_to_start() -> None:
    """A plugin without ``start`` may still have something to close."""
    stopped = []

    class Closing:
        @hookimpl
        def stop(self) -> None:
            stopped.append("closed")

    whole_life({"closing": Closing()})

    assert stopped == ["closed"]


# reload


class Reloading:
    """Takes new settings as it is told to."""

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self.answer = answer

    @hookimpl
    def reload(self, settings: Any) -> Any:
        return self.answer(settings)


def test_reload_hands_over_new_settings() -> None:
    """Each plugin gets its own section; what it says could not change is shown under its name."""
    plugins = {
        "a": Reloading(lambda settings: [f"{settings} needs a restart"]),
        "b": Reloading(lambda settings: coroutine([f"{settings} is read-only"])),
        "c": Reloading(lambda settings: None),
    }
    house = House(plugins=plugins)

    left = house.result(house.broker.reload(new_sections))

    assert left == ["a: section of a needs a restart", "b: section of b is read-only"]


def new_sections(name: str, settings_class: Any) -> Any:
    """Parses the sections of the new settings."""
    return f"section of {name}" if settings_class is None else settings_class()


@pytest.mark.parametrize("answer", [broken, broken_later])
def test_reload_that_fails_is_shown_and_counted(answer: Callable[..., Any]) -> None:
    """The plugin keeps its old settings; the others are reloaded all the same."""
    taken: list[Any] = []
    house = House(plugins={"a": Reloading(answer), "b": Reloading(taken.append)})

    left = house.result(house.broker.reload(new_sections))

    assert left == ["a: keeps its old settings: ValueError: broken"]
    assert taken == ["section of b"]
    assert house.assembly.metrics.sum("plugin.failures") == 1


def test_reload_of_settings_with_mistakes_changes_nothing() -> None:
    """No plugin is told before every section was found to be sound."""
    taken: list[Any] = []

    def sections(name: str, settings_class: Any) -> Any:
        if name == "b":
            raise SettingsError(["plugins.b.url: not a URL"])
        return new_sections(name, settings_class)

    house = House(plugins={"a": Reloading(taken.append), "b": Reloading(taken.append)})

    with pytest.raises(SettingsError, match="not a URL"):
        house.result(house.broker.reload(sections))

    assert taken == []


def test_reload_tells_the_mistakes_of_all_plugins_at_once() -> None:
    """In the order of the plugins; none of them is reloaded, and the limits stay as they were."""
    taken: list[Any] = []

    def sections(name: str, settings_class: Any) -> Any:
        if name in ("a", "c"):
            raise SettingsError([f"plugins.{name}.url: not a URL", f"plugins.{name}.port: not a port"])
        return new_sections(name, settings_class)

    house = House(plugins={name: Reloading(taken.append) for name in "abc"}, receive_maximum=3)

    with pytest.raises(SettingsError) as raised:
        house.result(house.broker.reload(sections, LimitSettings(receive_maximum=7)))

    assert list(raised.value.problems) == [
        "plugins.a.url: not a URL",
        "plugins.a.port: not a port",
        "plugins.c.url: not a URL",
        "plugins.c.port: not a port",
    ]
    assert taken == []
    assert house.connect("x", V5).connack.properties.receive_maximum == 3


def test_reload_has_a_minute() -> None:
    """A plugin that takes longer has failed; the next is told after that."""
    taken: list[Any] = []
    house = House(plugins={"a": Reloading(lambda settings: Deferred()), "b": Reloading(taken.append)})
    left: list[Any] = []
    Deferred.fromCoroutine(house.broker.reload(new_sections)).addCallback(left.extend)
    assert taken == []

    house.advance(61)

    assert taken == ["section of b"]
    assert "TimeLimitExceeded" in left[0]


# health


class Patient:
    """Is as well as it is told to be."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        self.answer = answer

    @hookimpl
    def health(self) -> Any:
        return self.answer()


WELL = Health(HealthState.HEALTHY)
POORLY = Health(HealthState.DEGRADED, "replica is behind")


def test_health_is_shown_by_plugin() -> None:
    """All answers, at once or later."""
    plugins = {"a": Patient(lambda: WELL), "b": Patient(lambda: coroutine(POORLY))}
    house = House(plugins=plugins)

    assert house.result(house.broker.health()) == {"a": WELL, "b": POORLY}


@pytest.mark.parametrize("answer", [broken, broken_later])
def test_health_that_fails_is_failed(answer: Callable[[], Any]) -> None:
    """A plugin that can't say how it does counts as FAILED; the others are asked all the same."""
    house = House(plugins={"a": Patient(answer), "b": Patient(lambda: WELL)})

    health = house.result(house.broker.health())

    assert (health["a"].state, health["b"]) == (HealthState.FAILED, WELL)
    assert "broken" in health["a"].text
    assert house.assembly.metrics.sum("plugin.failures") == 1


def test_health_has_five_seconds() -> None:
    """A plugin that takes longer to answer counts as FAILED."""
    house = House(plugins={"a": Patient(Deferred)})
    found: list[Any] = []
    Deferred.fromCoroutine(house.broker.health()).addCallback(found.append)
    house.advance(4)
    assert found == []

    house.advance(2)

    assert found[0]["a"].state is HealthState.FAILED


# What a plugin leaves out


class Modest:
    """Has hooks of which it leaves some out."""

    def __init__(self, *left_out: str) -> None:
        self.left_out = left_out
        self.asked: list[str] = []

    @hookimpl
    def configure(self, context: Context) -> None:
        self.context = context
        context.leave_out(*self.left_out)

    @hookimpl
    def authenticate(self) -> Decision:
        self.asked.append("authenticate")
        return ALLOW

    @hookimpl
    def authorize_receive(self) -> None:
        self.asked.append("authorize_receive")


def test_hooks_that_are_left_out_are_as_if_there_were_none() -> None:
    """Nobody asks, nothing is bound, and the plugin does not count as one that authenticates."""
    modest = Modest("authenticate", "authorize_receive")
    house = House(plugins={"modest": modest})

    house.connect("a").subscribe("t").publish("t")

    assert modest.asked == []
    assert not house.broker.runtime.hooks.authorize_receive.active
    assert "anonymous" in house.assembly.manager.active
    assert house.assembly.manager.hooks_of("modest") == ("configure",)


def test_hooks_are_left_out_one_by_one() -> None:
    """What is not left out goes on."""
    modest = Modest("authorize_receive", "authorize_receive")
    house = House(plugins={"modest": modest})

    house.connect("a").subscribe("t").publish("t")

    assert modest.asked == ["authenticate"]


def test_a_hook_that_is_none_can_not_be_left_out() -> None:
    """A misspelt name would leave the hook in."""
    with pytest.raises(
        AssemblyError, match=r"'modest' can't be configured: .*authorise, which it does not implement"
    ):
        House(plugins={"modest": Modest("authorise")})


def test_it_may_be_too_late_to_leave_a_hook_out() -> None:
    """What is bound stays bound."""
    modest = Modest()
    House(plugins={"modest": modest})

    with pytest.raises(RuntimeError, match="'modest' can leave hooks out only before the broker is assembled"):
        modest.context.leave_out("authenticate")


# guard_calls


class Breaker(CallGuard):
    """Lets calls in while it is closed, and writes down how they ended."""

    def __init__(self) -> None:
        self.open = False
        self.left: list[tuple[float, str]] = []

    def enter(self) -> bool:
        return not self.open

    def leave(self, duration_s: float, error: BaseException | None) -> None:
        self.left.append((duration_s, type(error).__name__))


class Guarding:
    """Puts one guard before the calls of the plugin ``auth``."""

    def __init__(self, guard: Any = None) -> None:
        self.guard = Breaker() if guard is None else guard
        self.asked: list[tuple[str, str]] = []

    @hookimpl
    def guard_calls(self, plugin: str, hook: str) -> Any:
        self.asked.append((plugin, hook))
        return self.guard if plugin == "auth" else None


class Authenticator:
    """Answers as the test says."""

    def __init__(self, answer: Any = ALLOW) -> None:
        self.answer = answer
        self.calls = 0

    @hookimpl
    def authenticate(self) -> Any:
        self.calls += 1
        return self.answer() if callable(self.answer) else self.answer

    @hookimpl
    def connected(self) -> None:
        """Nobody waits for this one."""

    @hookimpl
    def acquire(self) -> None:
        """This one answers at once."""


def test_guard_calls_is_asked_for_what_clients_wait_for() -> None:
    """Decide and intercept hooks that may be awaited, of other plugins: not notices, nor what answers at once."""
    guarding = Guarding()
    House(plugins={"guarding": guarding, "auth": Authenticator()})

    ours = [pair for pair in guarding.asked if pair[0] == "auth"]

    assert ours == [("auth", "authenticate")]
    assert "guarding" not in {plugin for plugin, _ in guarding.asked}


def test_guard_calls_hears_how_each_call_ended() -> None:
    """At once, later, with an error, or beyond its time limit; with the time it took."""
    later: Deferred[Any] = Deferred()
    answers: Iterator[Callable[[], Any]] = iter([lambda: ALLOW, lambda: later, broken, lambda: Deferred()])
    guarding = Guarding()
    house = House(plugins={"guarding": guarding, "auth": Authenticator(lambda: next(answers)())})

    house.connect("a")
    peer = house.connect("b")
    house.advance(3)
    later.callback(ALLOW)
    house.settle()
    house.connect("c")
    house.connect("d")
    house.advance(11)

    assert peer.connack.reason == 0
    assert [(round(seconds, 3), error) for seconds, error in guarding.guard.left] == [
        (0, "NoneType"),
        (3, "NoneType"),
        (0, "ValueError"),
        (10, "TimeLimitExceeded"),
    ]


def test_guard_calls_that_lets_nobody_in_is_a_failure() -> None:
    """The call is not made, and counts as the hook's page says: authentication is refused with 0x88."""
    guarding, auth = Guarding(), Authenticator()
    house = House(plugins={"guarding": guarding, "auth": auth})
    guarding.guard.open = True

    peer = house.connect("a", V5)

    assert peer.connack.reason is ReasonCode.SERVER_UNAVAILABLE
    assert auth.calls == 0
    guarding.guard.open = False
    assert house.connect("a", V5).connack.reason == 0


def test_guard_calls_of_several_plugins_are_all_asked() -> None:
    """Behind one that lets nobody in nobody is asked; those before it hear that the call was stopped."""
    plugins = {name: Guarding() for name in "abc"}
    house = House(plugins={**plugins, "auth": Authenticator()})
    plugins["b"].guard.open = True

    house.connect("x", V5)

    assert [plugins[name].guard.left for name in "abc"] == [[(0.0, "CallStopped")], [], []]


def test_guard_calls_hears_that_a_client_has_gone() -> None:
    """Which is neither a success nor the plugin's failure: whoever connects and goes must open no breaker."""
    guarding = Guarding()
    house = House(plugins={"guarding": guarding, "auth": Authenticator(lambda: Deferred())})

    house.connect("a").drop()

    [(_, error)] = guarding.guard.left
    assert error == "CallAbandoned"
    assert issubclass(CallAbandoned, CallStopped)


class BrokenGuard(CallGuard):
    """Raises whatever it is asked."""

    def enter(self) -> bool:
        raise ValueError("broken")

    def leave(self, duration_s: float, error: BaseException | None) -> None:
        raise ValueError("broken")


def test_guard_calls_with_a_broken_guard_lets_calls_in() -> None:
    """A guard that raises is counted under its plugin, and stops nobody."""
    house = House(plugins={"guarding": Guarding(BrokenGuard()), "auth": Authenticator()})
    before = house.assembly.metrics.sum("plugin.failures")

    peer = house.connect("a")

    assert peer.connack.reason == 0
    assert house.assembly.metrics.sum("plugin.failures") == before + 2


@pytest.mark.parametrize("guard", [1, "breaker"])
def test_guard_calls_that_answers_no_guard_stops_the_assembly(guard: Any) -> None:
    """Found when the broker is put together."""
    with pytest.raises(AssemblyError, match=r"'guarding': guard_calls returned an? \w+; expected None or CallGuard"):
        House(plugins={"guarding": Guarding(guard), "auth": Authenticator()})


@pytest.mark.parametrize("answer", [lambda: "yes", lambda: succeed("yes")])
def test_guard_calls_hears_of_an_answer_that_is_none(answer: Callable[[], Any]) -> None:
    """What counts as failed for the broker is no success for a guard."""
    guarding = Guarding()
    house = House(plugins={"guarding": guarding, "auth": Authenticator(answer)})

    peer = house.connect("a", V5)

    assert peer.connack.reason is ReasonCode.SERVER_UNAVAILABLE
    assert [error for _, error in guarding.guard.left] == ["WrongAnswer"]
