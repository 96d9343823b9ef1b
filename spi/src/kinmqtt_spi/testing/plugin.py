"""The contract of every plugin's life cycle: configured, started, reloaded, drained and stopped."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from attrs import frozen

from kinmqtt_spi import SPI_VERSION
from kinmqtt_spi.errors import NotConfigured, SettingsError
from kinmqtt_spi.markers import is_closed, topics_of
from kinmqtt_spi.memory.plugin import BareContext, TurnableClock
from kinmqtt_spi.metrics import MetricRegistry
from kinmqtt_spi.services.authorization import Action
from kinmqtt_spi.services.plugin import Health, HealthState, Requirements
from kinmqtt_spi.settings import Document, parse
from kinmqtt_spi.testing.behaviours import behaviour
from kinmqtt_spi.testing.contract import Contract
from kinmqtt_spi.testing.driving import Driver, NoAnswer, TurningDriver
from kinmqtt_spi.testing.hooks import Hooks
from kinmqtt_spi.topics import matches
from kinmqtt_spi.values import Client, Message, Publisher

DEADLINE_S: Final = 5.0
"""What a plugin is given to drain."""
RUNNING_S: Final = 60.0
"""How long a plugin runs on the clock before it is stopped."""

_TAKING: Final = {Action.PUBLISH: "publish_received", Action.WILL: "will_publishing"}
"""What clients may do with claimed topics, and the hook that takes it."""

_METRIC: Final = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)*")
_UNIT: Final = re.compile(r"[a-z]+([ /_][a-z]+)*")


@frozen(slots=True)
class PluginCase:
    """A plugin, and settings for it."""

    make: Callable[[], Any]
    """Makes the plugin object anew; of a plugin that is a module, answers the module."""
    section: str = ""
    """The settings section as TOML, under which the plugin acts."""
    changed: str | None = None
    """Another section that it takes; for the suite's ``reloads``."""
    refused: str | None = None
    """A section that can be parsed, and that ``reload`` refuses; for the suite's ``refuses_settings``."""
    name: str = "plugin"
    """The plugin's own: that of its entry point."""


@frozen(slots=True)
class _Life:
    """A plugin object with its context, through its life cycle."""

    plugin: Any
    context: BareContext
    hooks: Hooks
    drive: Driver
    unread: list[str]
    """The gauges that raised when they were read."""

    def call(self, hook: str, **arguments: Any) -> Any:
        """Return the plugin's answer; ``None`` if it does not implement the hook."""
        return self.drive(self.hooks.call(hook, **arguments)) if self.hooks.has(hook) else None

    def begin(self) -> None:
        self.call("start", context=self.context)
        self.call("ready")

    def run(self) -> None:
        self.context.clock.advance(RUNNING_S)

    def end(self) -> None:
        self.call("drain", deadline_s=DEADLINE_S)
        self.call("stop")

    def whole(self) -> None:
        self.begin()
        self.run()
        self.call("health")
        self.end()


class PluginContract(Contract):
    """Override the fixture ``plugin``, which returns a :class:`PluginCase`."""

    reloads = False
    """Whether it implements ``reload``: give the case another section, ``changed``."""
    refuses_settings = False
    """Whether ``reload`` refuses settings that can be parsed: give the case one of them, ``refused``."""
    can_fail = False
    """Whether the suite may make ``start`` fail: override :meth:`failing`."""

    @pytest.fixture
    def plugin(self) -> PluginCase:
        """The plugin under test, and settings for it."""
        raise NotImplementedError(f"{type(self).__name__} does not override the fixture plugin")

    def context(self, case: PluginCase, settings: Any, **more: Any) -> BareContext:
        """Return the plugin's context; override it to add sessions or clients."""
        return BareContext(case.name, settings, **more)

    def probe(self, plugin: Any) -> object:
        """Return what reveals the plugin's current settings: override it with something that depends on them.

        The default uses ``health``, ``limiter_needs`` and the ``$SYS`` topics. A plugin that reports a refused reload
        there needs another.
        """
        hooks = Hooks(plugin)
        shown: list[object] = [hooks.call(hook) for hook in ("health", "limiter_needs") if hooks.has(hook)]
        if hooks.has("sys_topics"):
            shown += [(each.topic, each.read()) for each in hooks.call("sys_topics")]
        return shown

    def failing(self, plugin: Any, context: BareContext) -> None:
        """Make ``start`` fail half-way."""
        raise NotImplementedError(f"{type(self).__name__} sets can_fail, and does not override failing")

    # What it declares

    @behaviour("PLUGIN-01")
    def test_plugin_01_it_says_for_which_version_it_is(self, plugin: PluginCase) -> None:
        """``requirements`` has this version of the SPI, as a literal number.

        ``SPI_VERSION`` is the installed version, and would hide that the plugin was written for another.
        """
        hooks = Hooks(plugin.make())
        if not hooks.has("requirements"):
            pytest.skip("the plugin makes no requirements")
        found = hooks.call("requirements")

        assert isinstance(found, Requirements)
        assert type(found.spi_version) is int
        assert found.spi_version == SPI_VERSION
        source = ast.parse(textwrap.dedent(inspect.getsource(hooks.implementations["requirements"].function)))
        names = {node.id for node in ast.walk(source) if isinstance(node, ast.Name)}
        names |= {node.attr for node in ast.walk(source) if isinstance(node, ast.Attribute)}
        assert "SPI_VERSION" not in names

    @behaviour("PLUGIN-02")
    def test_plugin_02_every_hook_is_one(self, plugin: PluginCase) -> None:
        """Every function marked as a hook has the name of a hook, and only arguments of that hook."""
        hooks = Hooks(plugin.make())

        assert hooks.implementations, "nothing is marked with @hookimpl"

    @behaviour("PLUGIN-03")
    def test_plugin_03_hooks_are_as_declared(self, plugin: PluginCase) -> None:
        """No synchronous hook is a coroutine, no hook is a wrapper, and none sets an order.

        Only hooks by topic are limited to topics.
        """
        hooks = Hooks(plugin.make())
        for name, implementation in hooks.implementations.items():
            traits = hooks.traits(name)
            assert not (traits.synchronous and inspect.iscoroutinefunction(implementation.function)), name
            assert not (implementation.hookwrapper or implementation.wrapper), name
            assert not (implementation.tryfirst or implementation.trylast), name
            assert traits.by_topic or topics_of(implementation.function) is None, name

    @behaviour("PLUGIN-21")
    def test_plugin_21_marks_mean_something(self, plugin: PluginCase) -> None:
        """Only hooks that fail open are marked ``fails_closed``."""
        hooks = Hooks(plugin.make())
        for name, implementation in hooks.implementations.items():
            assert hooks.traits(name).fails_open or not is_closed(implementation.function), name

    # Settings

    @behaviour("PLUGIN-04")
    def test_plugin_04_its_section_is_parsed(self, plugin: PluginCase) -> None:
        """Its section is parsed into its settings class; an empty section, too, or its errors are reported."""
        hooks = Hooks(plugin.make())

        _parsed(hooks, plugin.section)
        try:
            _parsed(hooks, "")
        except SettingsError as error:
            assert error.problems

    @behaviour("PLUGIN-05")
    def test_plugin_05_it_is_configured_or_says_why_not(self, plugin: PluginCase, clock: TurnableClock) -> None:
        """``configure`` accepts the section; for an empty one it raises only NotConfigured or SettingsError."""
        for section in (plugin.section, ""):
            hooks = Hooks(plugin.make())
            try:
                settings = _parsed(hooks, section)
                if hooks.has("configure"):
                    hooks.call("configure", context=self.context(plugin, settings, clock=clock))
            except (NotConfigured, SettingsError):
                assert section != plugin.section, "the plugin must act under the section of its case"

    @behaviour("PLUGIN-06")
    def test_plugin_06_two_do_not_know_each_other(
        self, plugin: PluginCase, drive: Driver, clock: TurnableClock
    ) -> None:
        """Two plugin objects with their own contexts are independent: the module has no state."""
        one = self._configured(plugin, drive, clock)
        before = self.probe(one.plugin)
        section = plugin.section if plugin.changed is None else plugin.changed
        other = self._configured(plugin, drive, TurnableClock(), section)
        untouched = _traces(other.context)

        assert self.probe(one.plugin) == before
        one.whole()
        assert _traces(other.context) == untouched

    @behaviour("PLUGIN-07", needs="reloads")
    def test_plugin_07_new_settings_hold(self, plugin: PluginCase, drive: Driver, clock: TurnableClock) -> None:
        """``reload`` returns a sentence for each setting that needs a restart; otherwise the new settings apply."""
        assert plugin.changed is not None, "the case has no other section"
        life = self._configured(plugin, drive, clock)
        life.begin()
        wanted = self._configured(plugin, drive, TurnableClock(), plugin.changed)
        wanted.begin()

        left = life.call("reload", settings=_parsed(life.hooks, plugin.changed))

        assert isinstance(left, Sequence)
        assert not isinstance(left, str)
        assert all(isinstance(sentence, str) and sentence for sentence in left)
        assert left or self.probe(life.plugin) == self.probe(wanted.plugin)
        for each in (life, wanted):
            each.end()

    @behaviour("PLUGIN-08", needs="refuses_settings")
    def test_plugin_08_the_old_settings_go_on(self, plugin: PluginCase, drive: Driver, clock: TurnableClock) -> None:
        """If ``reload`` raises, all old settings of the plugin stay."""
        assert plugin.refused is not None, "the case has no section that is refused"
        life = self._configured(plugin, drive, clock)
        life.begin()
        before = self.probe(life.plugin)

        settings = _parsed(life.hooks, plugin.refused)
        with pytest.raises(Exception) as raised:
            life.call("reload", settings=settings)

        assert not isinstance(raised.value, NoAnswer)
        assert self.probe(life.plugin) == before
        life.end()

    # Its life

    @behaviour("PLUGIN-09")
    def test_plugin_09_it_lives_and_ends(self, plugin: PluginCase, drive: Driver, clock: TurnableClock) -> None:
        """``start``, ``ready``, ``drain`` and ``stop``, in this order, raise nothing."""
        self._configured(plugin, drive, clock).whole()

    @behaviour("PLUGIN-10")
    def test_plugin_10_it_stops_unstarted(self, plugin: PluginCase, drive: Driver, clock: TurnableClock) -> None:
        """A plugin that was configured and not started can be stopped, and leaves nothing."""
        life = self._configured(plugin, drive, clock)
        life.call("stop")

        assert clock.pending() == 0

    @behaviour("PLUGIN-11")
    def test_plugin_11_it_stops_twice(self, plugin: PluginCase, drive: Driver, clock: TurnableClock) -> None:
        """A second stop does nothing."""
        life = self._configured(plugin, drive, clock)
        life.whole()
        life.call("stop")

        assert clock.pending() == 0

    @behaviour("PLUGIN-12")
    def test_plugin_12_no_timer_outlives_it(self, plugin: PluginCase, drive: Driver, clock: TurnableClock) -> None:
        """A stopped plugin has no timers, and does nothing any more."""
        life = self._configured(plugin, drive, clock)
        life.whole()
        left = clock.pending()
        traces = _traces(life.context)
        clock.advance(RUNNING_S)

        assert left == 0
        assert _traces(life.context) == traces

    @behaviour("PLUGIN-13", needs="can_fail")
    def test_plugin_13_a_failed_start_leaves_nothing(
        self, plugin: PluginCase, drive: Driver, clock: TurnableClock
    ) -> None:
        """A plugin whose ``start`` raised can be stopped, and leaves no timer."""
        life = self._configured(plugin, drive, clock)
        self.failing(life.plugin, life.context)

        with pytest.raises(Exception) as raised:
            life.call("start", context=life.context)
        life.call("stop")

        assert not isinstance(raised.value, NoAnswer)
        assert clock.pending() == 0

    @behaviour("PLUGIN-14")
    def test_plugin_14_it_drains_in_time(self, plugin: PluginCase, drive: Driver, clock: TurnableClock) -> None:
        """``drain`` completes within its deadline."""
        life = self._configured(plugin, drive, clock)
        life.begin()
        begun = clock.monotonic()
        if life.hooks.has("drain"):
            _within(drive, clock)(life.hooks.call("drain", deadline_s=DEADLINE_S))
        took = clock.monotonic() - begun
        life.call("stop")

        assert took <= DEADLINE_S

    # What it tells

    @behaviour("PLUGIN-15")
    def test_plugin_15_it_tells_its_health(self, plugin: PluginCase, drive: Driver, clock: TurnableClock) -> None:
        """``health`` returns a ``Health`` with a state at any time, and one line of text."""
        life = self._configured(plugin, drive, clock)
        told = [life.call("health")]
        life.begin()
        told.append(life.call("health"))
        life.run()
        told.append(life.call("health"))
        life.end()

        for health in told:
            if life.hooks.has("health"):
                assert isinstance(health, Health)
                assert isinstance(health.state, HealthState)
                assert "\n" not in health.text

    @behaviour("PLUGIN-16")
    def test_plugin_16_it_writes_to_its_log_alone(
        self, plugin: PluginCase, drive: Driver, clock: TurnableClock, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """Nothing is written to standard output or error: the plugin uses its log."""
        capfd.readouterr()
        self._configured(plugin, drive, clock).whole()
        written = capfd.readouterr()

        assert (written.out, written.err) == ("", "")

    @behaviour("PLUGIN-17")
    def test_plugin_17_its_lines_can_be_read(self, plugin: PluginCase, drive: Driver, clock: TurnableClock) -> None:
        """Every log line has the values that its format names."""
        life = self._configured(plugin, drive, clock)
        life.begin()
        for section in (plugin.changed, plugin.section):
            if section is not None and self.reloads:
                life.call("reload", settings=_parsed(life.hooks, section))
        life.run()
        life.end()

        for line in life.context.log.lines:
            assert str(line)

    @behaviour("PLUGIN-18")
    def test_plugin_18_its_metrics_are_well_named(
        self, plugin: PluginCase, drive: Driver, clock: TurnableClock
    ) -> None:
        """Its metric names are lower case with dots, its units are words, and its gauges can be read."""
        life = self._configured(plugin, drive, clock)
        life.begin()
        life.run()
        samples = life.context.registry.snapshot(clock.now(), "node").samples
        life.end()

        assert life.unread == []
        for sample in samples:
            assert _METRIC.fullmatch(sample.name), sample.name
            assert _UNIT.fullmatch(sample.unit), f"{sample.name}: {sample.unit}"

    @behaviour("PLUGIN-19")
    def test_plugin_19_its_files_are_in_their_place(
        self, plugin: PluginCase, drive: Driver, clock: TurnableClock, tmp_path: Path
    ) -> None:
        """Its files in the data directory are below ``plugins/`` and its name."""
        life = self._configured(plugin, drive, clock, data=tmp_path)
        life.whole()

        own = tmp_path / "plugins" / plugin.name
        elsewhere = [path for path in tmp_path.rglob("*") if path != own.parent and own not in (path, *path.parents)]
        assert elsewhere == []

    @behaviour("PLUGIN-20")
    def test_plugin_20_it_takes_what_it_claims(self, plugin: PluginCase, drive: Driver, clock: TurnableClock) -> None:
        """Every client message to a claimed topic is handled or refused; none passes unchanged.

        A message that passes would go to subscribers, and be retained.
        """
        life = self._configured(plugin, drive, clock)
        life.begin()
        passed = [
            f"{hook}: {topic}"
            for claim in life.context.claims
            for action, hook in _TAKING.items()
            if action in claim.actions
            for topic in (f"{claim.filter[:-2]}{below}" for below in ("", "/", "/kinmqtt", "/kinmqtt/test/topic"))
            if _passes(life, hook, Message(topic, b"kinmqtt", 1, True, publisher=Publisher("kinmqtt")))
        ]
        life.end()

        assert passed == []

    # Within

    def _configured(
        self,
        case: PluginCase,
        drive: Driver,
        clock: TurnableClock,
        section: str | None = None,
        data: Path | None = None,
    ) -> _Life:
        plugin = case.make()
        hooks = Hooks(plugin)
        unread: list[str] = []
        context = self.context(
            case,
            _parsed(hooks, case.section if section is None else section),
            clock=clock,
            registry=MetricRegistry(lambda name, error: unread.append(f"{name}: {error!r}")),
            data=data,
        )
        if hooks.has("configure"):
            hooks.call("configure", context=context)
        return _Life(plugin, context, hooks, drive, unread)


def _parsed(hooks: Hooks, section: str) -> Any:
    if not hooks.has("settings_class"):
        assert not section, "the plugin takes no settings"
        return None
    return parse(hooks.call("settings_class"), Document.parse(section, "kinmqtt.toml"), ())


def _passes(life: _Life, hook: str, message: Message) -> bool:
    """Tell whether a plugin passes a client's message unchanged."""
    if not life.hooks.has(hook):
        return True
    filters = topics_of(life.hooks.implementations[hook].function)
    if filters is not None and not any(matches(filter, message.topic) for filter in filters):
        return True
    answer = life.call(hook, client=Client("kinmqtt"), message=message)
    return answer is None or answer == message


def _traces(context: BareContext) -> list[object]:
    """The calls that a plugin has made on its context so far."""
    return [
        context.clock.pending(),
        list(context.log.lines),
        list(context.published),
        dict(context.values),
        list(context.disconnected),
        list(context.authorization_changes),
        [repr(sample) for sample in context.registry.snapshot(0, "").samples],
    ]


def _within(drive: Driver, clock: TurnableClock) -> Driver:
    """Waits, and advances the clock meanwhile, if it is the plugin's clock."""
    return TurningDriver(clock, lambda: clock.advance(0.1)) if isinstance(drive, TurningDriver) else drive
