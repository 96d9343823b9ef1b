"""docs/rules-cookbook.md, followed to the letter: one broker runs all recipes, and makes what they say."""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from attrs import define, field, frozen

from bridge_http_harness.server import Server
from bridge_mqtt_harness.mosquitto import mosquitto
from core_harness.brokers import run_command, running_broker
from kinmqtt.cli.main import main
from root_harness.kafka import Kafka
from root_harness.rabbitmq import RabbitMQ
from root_harness.smallclient import SmallClient
from root_harness.walkthrough import Command, agrees, steps
from spi_harness.processes import wait_until

PAGE = (Path(__file__).parent.parent / "docs" / "rules-cookbook.md").read_text(encoding="utf-8")

SUBSCRIBERS: Final = "subscribers"
KAFKA: Final = "Kafka"
WEBHOOK: Final = "the webhook"
RABBITMQ: Final = "RabbitMQ"
FAR_BROKER: Final = "the other broker"
TOPIC: Final = "plant-readings"
QUEUE: Final = "labels"

_INPUT: Final = re.compile(r"`(\S+)` (publishes|connects|disconnects)")
_OUTCOME: Final = re.compile(r"→ (?:nothing|(.+?) gets?(?:, with the key `(.+)`)?)")

CHECK_ALL: Final = """
import sys
from kinmqtt.cli.main import main
for file in sys.argv[1:]:
    if main(["check", "-c", file]):
        sys.exit(f"that was {file}")
"""


# The page


@frozen
class Outcome:
    """What comes out, and where."""

    place: str
    where: str
    """A topic, a path or a routing key."""
    payload: str
    key: str = ""

    def is_told_by(self, page: Outcome) -> bool:
        """Whether the page says so, where ``…`` stands for anything."""
        same = (self.place, self.where, self.key) == (page.place, page.where, page.key)
        return same and agrees(self.payload, page.payload)


@frozen
class Input:
    """What a client does, and all that comes out then."""

    client: str
    does: str
    topic: str
    payload: str
    outcomes: list[Outcome] = field(factory=list)


@frozen
class Recipe:
    """A section of the page."""

    title: str
    settings: str
    commands: list[Command]
    inputs: list[Input]


def recipes(page: str) -> list[Recipe]:
    """Return the recipes of a page, each of which has all that a reader needs; raises ``ValueError``."""
    return [_recipe(section) for section in re.split(r"^## ", page, flags=re.MULTILINE)[1:]]


def _recipe(section: str) -> Recipe:
    title = section.partition("\n")[0]
    settings = re.findall(r"^```toml\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    if len(settings) != 1:
        raise ValueError(f"{title}: it has {len(settings)} blocks of settings, not one")
    commands = [step for step in steps(section) if isinstance(step, Command)]
    if not commands:
        raise ValueError(f"{title}: no command tries the rule")
    inputs = _inputs(title, re.findall(r"^\|(.*)\|$", section, re.MULTILINE))
    if not any(each.outcomes for each in inputs):
        raise ValueError(f"{title}: no message goes in that something comes out of")
    return Recipe(title, settings[0], commands, inputs)


def _inputs(title: str, rows: list[str]) -> list[Input]:
    found: list[Input] = []
    has_outcome = True
    for row in rows[2:]:
        who, *others = (cell.strip() for cell in row.split("|"))
        where, payload = (cell.strip("`") for cell in others)
        if match := _INPUT.fullmatch(who):
            if not has_outcome:
                break
            found.append(Input(match[1], match[2], where, payload))
            has_outcome = False
        elif (match := _OUTCOME.fullmatch(who)) and found:
            if match[1] is not None:
                found[-1].outcomes.append(Outcome(match[1], where, payload, match[2] or ""))
            has_outcome = True
        else:
            raise ValueError(f"{title}: nobody knows what {who!r} means")
    if not has_outcome:
        raise ValueError(f"{title}: the page does not say what comes of {found[-1].payload or found[-1].does!r}")
    return found


RECIPES = recipes(PAGE)
each_recipe = pytest.mark.parametrize("recipe", RECIPES, ids=[each.title for each in RECIPES])


def test_there_are_ten_recipes() -> None:
    """A shorter list would let the tests below pass; and the table at the beginning has all of them."""
    links = re.findall(r"^\| \[(.*?)\]\(#", PAGE, re.MULTILINE)

    assert len(RECIPES) >= 10
    assert links == [each.title for each in RECIPES]


SOUND: Final = """## One
```toml
[plugins.rules.one]
```
```console
$ kinmqtt rules test one
```
| | topic | payload |
|---|---|---|
| `c` publishes | `t` | `1` |
| → subscribers get | `u` | `2` |
"""


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("```toml\n[plugins.rules.one]\n```\n", "", "One: it has 0 blocks of settings"),
        ("$ kinmqtt", "kinmqtt", "One: no command tries the rule"),
        ("| → subscribers get | `u` | `2` |\n", "", "One: the page does not say what comes of '1'"),
        ("| → subscribers get | `u` | `2` |\n", "| → nothing | | |\n", "One: no message goes in that something"),
        ("| → sub", "| `c` publishes | `t` | `2` |\n| → sub", "One: the page does not say what comes of '1'"),
        ("| `c` publishes | `t` | `1` |\n", "", "One: nobody knows what '→ subscribers get' means"),
        ("publishes", "publshes", "One: nobody knows what '`c` publshes' means"),
    ],
)
def test_a_recipe_that_is_not_complete_is_found(old: str, new: str, problem: str) -> None:
    """A message without an outcome would be followed without a test of it."""
    assert recipes(SOUND)[0].inputs == [Input("c", "publishes", "t", "1", [Outcome(SUBSCRIBERS, "u", "2")])]

    with pytest.raises(ValueError, match=re.escape(problem)):
        recipes(SOUND.replace(old, new))


# Without a broker


def test_the_settings_of_each_recipe_are_valid(tmp_path: Path) -> None:
    """As they are, each without the others; one process checks them all."""
    files = []
    for number, recipe in enumerate(RECIPES):
        (tmp_path / f"{number}.toml").write_text(recipe.settings, encoding="utf-8")
        files.append(f"{number}.toml")

    done = run_command("-c", CHECK_ALL, *files, program=[sys.executable], cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the settings are valid") == len(RECIPES)


@each_recipe
def test_the_sinks_of_a_recipe_are_in_it(recipe: Recipe) -> None:
    """A broker starts with a recipe alone."""
    plugins = tomllib.loads(recipe.settings)["plugins"]
    there = {
        f"{plugin}:{name}"
        for plugin, settings in plugins.items()
        for name in settings.get("sinks") or settings.get("connections", ())
    }

    assert {
        action["sink"] for rule in plugins["rules"].values() for action in rule["actions"] if "sink" in action
    } <= there


@each_recipe
def test_the_commands_print_what_the_page_says(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the settings of the recipe; each command has the status that goes with it."""
    (tmp_path / "kinmqtt.toml").write_text(recipe.settings, encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    for command in recipe.commands:
        program, *arguments = shlex.split(command.line)
        status = main(arguments)
        printed = capsys.readouterr().out

        assert program == "kinmqtt"
        assert agrees(printed, command.expected), f"$ {command.line}\n{printed}"
        assert status == (1 if printed.startswith("no row") else 0)


# With a broker, and everything around it


@define
class Kitchen:
    """A broker with all recipes, and what has come out of it at each place."""

    port: int
    places: dict[str, Callable[[], list[Outcome]]]
    """Each returns all that has come so far."""
    put_in: set[tuple[str, str]]
    """The topics and payloads of what clients have published: subscribers get that, too."""
    clients: dict[str, SmallClient] = field(factory=dict)
    compared: dict[str, int] = field(factory=dict)
    """How many outcomes at each place were compared with the page."""

    def let(self, client: str, do: str, topic: str, payload: str) -> None:
        """Have a client do something."""
        if do == "connects":
            self.clients[client] = SmallClient(self.port, client)
        elif do == "disconnects":
            self.clients.pop(client).close()
        else:
            self.put_in.add((topic, payload))
            with SmallClient(self.port, client) as publisher:
                assert publisher.publish(topic, payload.encode()) in (0, 16)

    def next(self, place: str) -> Outcome:
        """Return the next outcome at a place, once it is there."""
        number = self.compared.setdefault(place, 0)
        found: list[Outcome] = []

        def has_come() -> bool:
            found[:] = self.places[place]()
            return len(found) > number

        wait_until(has_come, f"{place}: something comes out")
        self.compared[place] += 1
        return found[number]

    def others(self, place: str) -> list[Outcome]:
        """Return what has come to a place and was compared with nothing."""
        return self.places[place]()[self.compared.get(place, 0) :]


@pytest.fixture(scope="module")
def kitchen(
    kafka_of_session: Kafka, rabbitmq_of_session: RabbitMQ, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kitchen]:
    """One for all recipes: nothing in the page keeps them from standing in one file."""
    folder = tmp_path_factory.mktemp("cookbook")
    kafka, rabbitmq, webhook = kafka_of_session, rabbitmq_of_session, Server()
    kafka.restore()
    rabbitmq.restore()
    kafka.create_topic(TOPIC)
    put_in: set[tuple[str, str]] = set()
    taken: dict[str, list[Outcome]] = {SUBSCRIBERS: [], FAR_BROKER: [], RABBITMQ: []}
    with ExitStack() as stack:
        stack.callback(webhook.stop)
        far = stack.enter_context(mosquitto(folder / "mosquitto"))
        settings = "".join(recipe.settings for recipe in RECIPES)
        for address, real in (
            ("127.0.0.1:9092", kafka.address),
            ("127.0.0.1:5672", rabbitmq.address),
            ("http://127.0.0.1:8080", webhook.url),
            ("city.example:1883", far.address),
        ):
            assert address in settings
            settings = settings.replace(address, real)
        (folder / "kinmqtt.toml").write_text(settings, encoding="utf-8")
        broker = stack.enter_context(running_broker("-c", "kinmqtt.toml", cwd=folder))

        def watch(place: str, port: int) -> Callable[[], list[Outcome]]:
            watcher = stack.enter_context(SmallClient(port, "watcher"))
            watcher.subscribe("#")

            def received() -> list[Outcome]:
                for topic, payload in watcher.received():
                    if (topic, payload.decode()) not in put_in:
                        taken[place].append(Outcome(place, topic, payload.decode()))
                return taken[place]

            return received

        def records() -> list[Outcome]:
            return [Outcome(KAFKA, TOPIC, each.value.decode(), each.key.decode()) for each in kafka.records(TOPIC)]

        def requests() -> list[Outcome]:
            return [Outcome(WEBHOOK, got.path, got.body.decode()) for got in list(webhook.got)]

        def orders() -> list[Outcome]:
            for each in rabbitmq.take(QUEUE):
                taken[RABBITMQ].append(Outcome(RABBITMQ, each.routing_key, each.body.decode()))
            return taken[RABBITMQ]

        kitchen = Kitchen(
            broker.port,
            {
                SUBSCRIBERS: watch(SUBSCRIBERS, broker.port),
                FAR_BROKER: watch(FAR_BROKER, far.port),
                KAFKA: records,
                WEBHOOK: requests,
                RABBITMQ: orders,
            },
            put_in,
        )
        yield kitchen
        for client in kitchen.clients.values():
            client.close()


@each_recipe
def test_what_goes_in_comes_out_as_the_page_says(recipe: Recipe, kitchen: Kitchen) -> None:
    """Real clients, and a real Kafka, RabbitMQ, Mosquitto and HTTP server."""
    for each in recipe.inputs:
        kitchen.let(each.client, each.does, each.topic, each.payload)
        for expected in each.outcomes:
            outcome = kitchen.next(expected.place)
            assert outcome.is_told_by(expected), f"{outcome} came, and not {expected}"
        assert kitchen.others(SUBSCRIBERS) == []  # a rule publishes before the publisher is acknowledged


@pytest.mark.parametrize("place", [SUBSCRIBERS, FAR_BROKER, KAFKA, WEBHOOK, RABBITMQ])
def test_nothing_else_has_come_out(place: str, kitchen: Kitchen) -> None:
    """Neither of messages that a rule leaves out, nor of one recipe through another."""
    assert kitchen.others(place) == []
