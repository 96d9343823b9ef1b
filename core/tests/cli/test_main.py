"""The `kinmqtt` command as a person sees it, in processes of its own."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from core_harness.brokers import BrokerProcess, broker_command, run_command, running_broker
from core_harness.surroundings import Surroundings
from core_harness.wire import wire
from kinmqtt.mqtt.packets import V5, V311, DisconnectPacket
from kinmqtt_spi.reasons import ReasonCode
from spi_harness.processes import environment, free_port

LIMITS = """
from kinmqtt_spi import fails_closed, hookimpl

@hookimpl
@fails_closed
def acquire(resource):
    return None

@hookimpl
def delivering(message):
    return None

@hookimpl
def authorize(request):
    return None
"""

GUARD = """
from attrs import frozen
from kinmqtt_spi import ALLOW, hookimpl
from kinmqtt_spi.settings import setting

@frozen
class Settings:
    colour: str = setting("blue", help="the colour")

@hookimpl
def settings_class():
    return Settings

@hookimpl
def authenticate(request):
    return ALLOW
"""

STORES = """
from kinmqtt_spi import hookimpl
from kinmqtt_spi.memory.queue import MemoryQueueStore

@hookimpl
def queue_store():
    return MemoryQueueStore()
"""


@pytest.fixture
def surroundings(tmp_path: Path) -> Surroundings:
    """Where a test's plugins are installed, and a watch on what listens."""
    return Surroundings(tmp_path)


Refused = Callable[..., str]


@pytest.fixture
def refused(tmp_path: Path, surroundings: Surroundings) -> Refused:
    """Runs `kinmqtt run`, which must refuse with one clear message, and returns that."""

    def run(settings: str | None, *arguments: str, command: str = "run", **variables: str) -> str:
        if settings is not None:
            (tmp_path / "k.toml").write_text(settings)
            arguments = ("-c", "k.toml", *arguments)
        done = run_command(command, *arguments, cwd=tmp_path, env=surroundings.environment | variables)

        assert (done.returncode, done.stdout) == (1, "")
        assert surroundings.bound_ports == []
        message = done.stderr.removesuffix("\n")
        assert message.startswith("kinmqtt: ")
        assert "\n" not in message and "Traceback" not in message
        return message.removeprefix("kinmqtt: ")

    return run


# What goes well


def test_version() -> None:
    """`kinmqtt version` names the versions of the broker, of Python and of Twisted, and whether it is compiled."""
    done = run_command("version")

    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"kinmqtt \d\S* \(Python \d\S*, Twisted \d\S*; (compiled|plain Python.*)\)\n", done.stdout)


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["check", "--help"], ["plugins", "--help"]])
def test_help(arguments: list[str]) -> None:
    """Help says how the command is used."""
    done = run_command(*arguments)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: kinmqtt")


@pytest.mark.parametrize("arguments", [[], ["rum"], ["run", "--bogus"], ["run", "--log-level", "loud"]])
def test_usage(arguments: list[str]) -> None:
    """A command line that is none is answered with its usage and exit status 2."""
    done = run_command(*arguments)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: kinmqtt")
    assert "Traceback" not in done.stderr


def test_check_says_what_would_run(surroundings: Surroundings) -> None:
    """`kinmqtt check` shows listeners, services and plugins, and starts and opens nothing."""
    surroundings.install("guard", GUARD, {"guard": "guard"})

    done = run_command("check", "-l", "tcp:1885", env=surroundings.environment)

    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("listen: tcp:1885")
    assert "queue: memory" in lines
    assert any(line.startswith("hooks run in this order: guard, ") for line in lines)
    assert lines[-1] == "the settings are valid"
    assert surroundings.bound_ports == []


def test_plugins_says_who_and_why(surroundings: Surroundings) -> None:
    """`kinmqtt plugins` lists what is installed, whether it is used and why, and what it does."""
    surroundings.install("guard", GUARD, {"guard": "guard"})
    surroundings.install("stores", STORES, {"stores": "stores"})

    surroundings.install("limits", LIMITS, {"limits": "limits"})

    done = run_command("plugins", "-P", "no:hash", env=surroundings.environment)

    assert (done.returncode, done.stderr) == (0, "")
    assert "+ guard (guard 1.0): installed\n    hooks: authenticate, settings_class\n" in done.stdout
    assert "+ stores (stores 1.0): installed\n    serves: queue\n    hooks: queue_store\n" in done.stdout
    assert "\n    claims: $delayed/#\n" in done.stdout
    assert "    hooks: acquire (fails closed), authorize, delivering (fails open)\n" in done.stdout
    assert "- anonymous (built-in): guard authenticates\n" in done.stdout
    assert "- hash (built-in): disabled by the settings\n" in done.stdout


def test_the_broker_introduces_itself(tmp_path: Path) -> None:
    """A broker with nothing configured says what it is, where it listens, its limits, and where state is kept."""
    with running_broker("--log-level", "info", cwd=tmp_path) as broker:
        broker.wait_for_line("state is kept in memory")
        lines = [line.partition("[kinmqtt#info] ")[2] for line in broker.lines if "[kinmqtt#info]" in line]

    assert len(lines) == 4
    assert re.fullmatch(r"kinmqtt \S+ on \S+ \S+, asyncio reactor on uvloop", lines[0])
    assert lines[1].startswith(f"listening on tcp:{broker.port}:interface=127.0.0.1")
    assert lines[1].endswith("; anonymous clients are accepted")


def test_sigterm_sends_the_clients_away() -> None:
    """SIGTERM tells MQTT 5 clients that the server shuts down, closes the others, and exits with status 0."""
    with (
        running_broker() as broker,
        wire(broker.port, "five", V5) as five,
        wire(broker.port, "four", V311) as four,
        wire(broker.port) as unconnected,
    ):
        broker.tell_to_stop()

        assert five.expect(DisconnectPacket).reason is ReasonCode.SERVER_SHUTTING_DOWN
        assert five.receive() is None
        assert four.receive() is None
        assert unconnected.receive() is None
        assert broker.wait() == 0


def test_sigterm_with_a_client_that_reads_nothing() -> None:
    """A client that takes nothing does not keep the broker from stopping."""
    with (
        running_broker() as broker,
        wire(broker.port, "stuck", receive_buffer=4096) as stuck,
        wire(broker.port, "pub") as pub,
    ):
        stuck.subscribe("flood", 0)
        for _ in range(50):
            pub.publish("flood", bytes(200_000))
        pub.ping()

        broker.tell_to_stop()

        assert broker.wait() == 0


# What does not: mistakes in the settings

LOCAL = '[broker]\nlisten = ["127.0.0.1:1883"]\n'

MISTAKES = [
    ("unknown-table", "[brokr]\n", "k.toml:1:2: brokr: unknown table; did you mean 'broker'?"),
    ("misspelt-key", '[broker]\nlistn = ["1"]\n', "k.toml:2:1: broker.listn: unknown key; did you mean 'listen'?"),
    ("wrong-type", "[broker]\nlisten = 5\n", "k.toml:2:10: broker.listen: expected a list, each element a string"),
    ("wrong-value", '[limits]\nqueue_full = "all"\n', "k.toml:2:14: limits.queue_full: expected "),
    (
        "out-of-range",
        "[limits]\nmax_inflight = 0\n",
        "k.toml:2:16: limits.max_inflight: expected a whole number from 1 to 65535, got 0",
    ),
    ("bad-toml", "[broker\n", "k.toml:1:8: "),
    (
        "unknown-plugin",
        "[plugins.sql_session]\n",
        "k.toml:1: plugins.sql_session: no plugin named 'sql_session' is installed",
    ),
    (
        "misspelt-plugin",
        '[services]\nqueue = "memry"\n',
        "k.toml:2: services.queue: no plugin named 'memry' is installed; did you mean 'memory'?",
    ),
    (
        "plugin-of-another-family",
        '[services]\nqueue = "trie"\n',
        "services.queue names plugin 'trie', which does not provide that service; those that do: 'memory'",
    ),
    ("bad-endpoint", '[broker]\nlisten = ["tcp:x"]\n', "k.toml:2: broker.listen: 'tcp:x' is not an endpoint ("),
    ("no-endpoint", "[broker]\nlisten = []\n", "k.toml:2: broker.listen is empty"),
    (
        "endpoint-twice",
        '[broker]\nlisten = ["127.0.0.1:1", "tcp:1:interface=127.0.0.1"]\n',
        "k.toml:2: broker.listen names 'tcp:1:interface=127.0.0.1' twice",
    ),
    (
        "beyond-loopback",
        '[broker]\nlisten = ["1883"]\n',
        "the broker would listen beyond loopback without authentication: install an authenticator, listen on "
        "loopback only, or set broker.allow_anonymous = true",
    ),
    (
        "section-nobody-reads",
        "[plugins.anonymous]\nx = 1\n",
        "k.toml:1: plugins.anonymous: the plugin takes no settings",
    ),
    (
        "used-and-disabled",
        '[plugins]\norder = ["trie"]\ndisabled = ["trie"]\n',
        "k.toml:2: plugins.order: the settings both use and disable plugin 'trie'",
    ),
]


@pytest.mark.parametrize(("settings", "message"), [row[1:] for row in MISTAKES], ids=[row[0] for row in MISTAKES])
def test_a_mistake_in_the_file(refused: Refused, settings: str, message: str) -> None:
    """A mistake is told in one line with file, line, key, what was expected and the nearest spelling."""
    assert refused(settings).startswith(message)


OPTIONS = [
    ("missing-file", ("-c", "missing.toml"), "missing.toml: there is no such file"),
    ("folder-as-file", ("-c", "."), ".: can't be read: "),
    ("device-as-file", ("-c", "/dev/zero"), "/dev/zero: can't be read: it is a device, not a regular file"),
    ("bad-endpoint", ("-l", ""), "--listen: '' is not an endpoint ("),
    ("port-too-high", ("-l", "tcp:70000"), "--listen: 'tcp:70000' is not an endpoint (70000 is more than 65535"),
    ("beyond-loopback", ("-l", "0.0.0.0:1883"), "the broker would listen beyond loopback"),
    ("unknown-plugin", ("-P", "no:nobody"), "-P no:nobody: no plugin named 'nobody' is installed"),
    ("bad-plugin-option", ("-P", "nobody"), "-P nobody: expected no:NAME"),
    ("data-nowhere", ("--data", ""), "--data: name a directory, or memory"),
]


@pytest.mark.parametrize(("arguments", "message"), [row[1:] for row in OPTIONS], ids=[row[0] for row in OPTIONS])
def test_a_mistake_in_an_option(refused: Refused, arguments: tuple[str, ...], message: str) -> None:
    """A mistake on the command line is told in one line that names the option."""
    assert refused(None, *arguments).startswith(message)


def test_a_key_in_the_wrong_table_is_told_where_it_belongs(refused: Refused) -> None:
    """A key that is known elsewhere, in the core's tables or a plugin's, is named with its table."""
    core = refused("[broker]\nmax_connections = 5\n")
    builtin = refused("[limits]\nentries = []\n")
    above = refused('listen = ["127.0.0.1:1883"]\n[broker]\n')

    assert above == "k.toml:1:1: listen: unknown key; it belongs to broker.listen"
    assert core == (
        "k.toml:2:1: broker.max_connections: unknown key; it belongs to limits.max_connections or "
        "listeners.NAME.limits.max_connections"
    )
    assert builtin == "k.toml:2:1: limits.entries: unknown key; it belongs to plugins.bans.entries"


def test_a_string_without_quotes_is_recognised(refused: Refused) -> None:
    """A value that is no TOML but reads like a string is shown as it is to be written."""
    path = refused("[broker]\ndata = /var/lib/mqtt  # here\n")
    switch = refused("[broker]\nallow_anonymous = yes\n")

    assert path == 'k.toml:2:8: invalid value; did you mean data = "/var/lib/mqtt"?'
    assert switch == "k.toml:2:19: invalid value; did you mean allow_anonymous = true?"
    assert refused("[broker]\nallow_anonymous = True\n") == switch


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("14 d", '"14 d"'),
        ("a, b", '"a, b"'),
        ("1MiB", '"1MiB"'),
        ("[tcp:1, wss:2]", '["tcp:1", "wss:2"]'),
        ("""[auth_file, "bans", 'a', 5]""", """["auth_file", "bans", 'a', 5]"""),
    ],
)
def test_units_and_lists_without_quotes_are_recognised(refused: Refused, written: str, meant: str) -> None:
    """They are shown as they are to be written."""
    assert refused(f"[broker]\nlisten = {written}\n").endswith(f"; did you mean listen = {meant}?")


def test_what_no_quotes_would_mend_is_told_without_a_guess(refused: Refused) -> None:
    """A table within the line, and a number that is none."""
    assert refused("[broker]\nlisten = {a = b}\n") == "k.toml:2:15: invalid value"
    assert "did you mean" not in refused("[broker]\nlisten = 07\n")


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("chek",), "; did you mean check?"),
        (("frobnicate",), ")"),
        (("check", "k.toml"), "unrecognized arguments: k.toml; a settings file is given as -c k.toml"),
        (("run", "--lisen=tcp:1"), "unrecognized arguments: --lisen=tcp:1; did you mean --listen?"),
        (("version", "--frobnicate"), "unrecognized arguments: --frobnicate"),
    ],
)
def test_a_misspelt_command_or_option_is_told_with_what_is_near(arguments: tuple[str, ...], hint: str) -> None:
    """And nothing is guessed where nothing is near."""
    done = run_command(*arguments)

    assert done.returncode == 2
    assert done.stderr.rstrip().endswith(hint)


def test_check_finds_a_data_directory_that_can_not_be_written(refused: Refused) -> None:
    """`check` says what `run` would fail on, with the place of the setting, and makes nothing."""
    assert refused(None, "--data", "/proc/kinmqtt", command="check") == (
        "broker.data: /proc/kinmqtt: can't be made in /proc: No such file or directory"
    )


def test_check_names_sections_that_have_no_effect(surroundings: Surroundings, tmp_path: Path) -> None:
    """A section of a plugin that is not used is no mistake, and is not passed over in silence."""
    surroundings.install("guard", GUARD, {"guard": "guard"})
    (tmp_path / "k.toml").write_text("[plugins]\nonly = []\n[plugins.guard]\nx = 1\n")

    done = run_command("check", "-c", "k.toml", cwd=tmp_path, env=surroundings.environment)

    assert done.returncode == 0, done.stderr
    assert "k.toml:3: plugins.guard: the section has no effect: not among plugins.only\n" in done.stdout


def test_a_mistake_in_the_environment(refused: Refused) -> None:
    """A variable that sets nothing is refused, with the nearest name."""
    message = refused(LOCAL, KINMQTT__BROKER__LISTN="1")

    assert message == "KINMQTT__BROKER__LISTN: sets nothing; did you mean KINMQTT__BROKER__LISTEN?"


@pytest.mark.parametrize("command", ["check", "plugins"])
def test_the_other_commands_refuse_the_same(refused: Refused, command: str) -> None:
    """`check` and `plugins` say of a mistake what `run` says."""
    assert refused("[brokr]\n", command=command) == refused("[brokr]\n")


def test_all_mistakes_at_once(tmp_path: Path) -> None:
    """A file with several mistakes gives one line for each."""
    (tmp_path / "k.toml").write_text("[limits]\nmax_inflight = 0\nmax_queued_messages = 0\n")

    done = run_command("run", "-c", "k.toml", cwd=tmp_path)

    assert done.returncode == 1
    assert [line.split(": ")[2] for line in done.stderr.splitlines()] == [
        "limits.max_inflight",
        "limits.max_queued_messages",
    ]


def test_listening_beyond_loopback_can_be_wanted(surroundings: Surroundings) -> None:
    """With `--allow-anonymous`, or with an authenticator, a broker may listen anywhere."""
    allowed = run_command("check", "-l", "1883", "--allow-anonymous", env=surroundings.environment)
    surroundings.install("guard", GUARD, {"guard": "guard"})
    guarded = run_command("check", "-l", "1883", env=surroundings.environment)

    assert (allowed.returncode, guarded.returncode) == (0, 0)


# Mistakes with plugins


def test_two_plugins_for_one_family(surroundings: Surroundings, refused: Refused) -> None:
    """Two installed plugins that provide one service are named, with the setting that decides."""
    surroundings.install("stores", STORES, {"one": "stores", "two": "stores2"})
    (surroundings.folder / "stores2.py").write_text(STORES)

    message = refused(LOCAL)

    assert message == "plugins 'one' and 'two' both provide the queue service; name one: services.queue = 'one'"


def test_naming_one_of_two_plugins_decides(surroundings: Surroundings, tmp_path: Path) -> None:
    """Where the settings name one of two plugins for a service, that one serves."""
    surroundings.install("stores", STORES, {"one": "stores", "two": "stores2"})
    (surroundings.folder / "stores2.py").write_text(STORES)
    (tmp_path / "k.toml").write_text('[services]\nqueue = "two"\n')

    done = run_command("check", "-c", "k.toml", cwd=tmp_path, env=surroundings.environment)

    assert (done.returncode, done.stderr) == (0, "")
    assert "queue: two\n" in done.stdout


def test_two_plugins_of_one_name(surroundings: Surroundings, refused: Refused) -> None:
    """Two distributions whose plugins have one name are both named."""
    surroundings.install("stores", STORES, {"mine": "stores"})
    surroundings.install("guard", GUARD, {"mine": "guard"})

    message = refused(LOCAL)

    assert message.startswith("two plugins are named 'mine': one of ")
    assert "stores 1.0 (stores)" in message and "guard 1.0 (guard)" in message


BROKEN = [
    ("import", "import nothing_of_that_name\n", "can't be loaded from broken: ModuleNotFoundError: "),
    ("syntax", "def\n", "can't be loaded from broken: SyntaxError: "),
    (
        "configure",
        "from kinmqtt_spi import hookimpl\n@hookimpl\ndef configure(context):\n    raise ValueError('no cheese')\n",
        "can't be configured: ValueError: no cheese",
    ),
    (
        "provide",
        "from kinmqtt_spi import hookimpl\n@hookimpl\ndef queue_store():\n    return 3\n",
        "queue_store returned a int, which is no QueueStore",
    ),
    (
        "hook",
        "from kinmqtt_spi import hookimpl\n@hookimpl\ndef authenticate(requst):\n    return None\n",
        "requst",
    ),
]


@pytest.mark.parametrize(("source", "why"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN])
def test_a_broken_plugin(surroundings: Surroundings, refused: Refused, source: str, why: str) -> None:
    """A plugin that can't be used keeps the broker from starting, and the message says whose fault it is."""
    surroundings.install("broken", source, {"broken": "broken"})

    message = refused(LOCAL)

    assert message.startswith("plugin 'broken'")
    assert why in message


def test_a_plugin_that_can_not_start(surroundings: Surroundings, tmp_path: Path) -> None:
    """A plugin that fails to start ends the broker with status 1 and its name, before anything listens."""
    source = "from kinmqtt_spi import hookimpl\n@hookimpl\ndef start(context):\n    raise OSError('no cheese')\n"
    surroundings.install("broken", source, {"broken": "broken"})

    done = run_command("run", cwd=tmp_path, env=surroundings.environment)

    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "kinmqtt: plugin 'broken' can't start: OSError: no cheese"
    assert "Traceback" not in done.stderr
    assert surroundings.bound_ports == []


UNCONFIGURED = """
from kinmqtt_spi import ALLOW, hookimpl
from kinmqtt_spi.errors import NotConfigured

@hookimpl
def configure(context):
    raise NotConfigured("name a password file")

@hookimpl
def authenticate(request):
    return ALLOW
"""


def test_an_authenticator_that_is_not_configured(surroundings: Surroundings, refused: Refused) -> None:
    """An authenticator that is installed but not configured neither shuts everybody out nor guards anything."""
    surroundings.install("gate", UNCONFIGURED, {"gate": "gate"})

    assert refused('[broker]\nlisten = ["1883"]\n').startswith("the broker would listen beyond loopback")
    with running_broker(env=surroundings.environment) as broker, wire(broker.port, "client") as client:
        client.ping()
        assert "anonymous clients are accepted" in broker.output


def test_a_plugin_that_is_named_but_not_configured(surroundings: Surroundings, refused: Refused) -> None:
    """A plugin that the settings name must start, or the broker does not: a guard must not vanish quietly."""
    surroundings.install("gate", UNCONFIGURED, {"gate": "gate"})

    message = refused('[plugins]\norder = ["gate"]\n')

    assert message == "plugin 'gate' is named in the settings but not configured: name a password file"


def test_a_section_for_a_store_that_is_not_wanted(tmp_path: Path) -> None:
    """`--data memory` does without the embedded store, whatever the file says of it, unless a service names it."""
    settings = tmp_path / "k.toml"
    settings.write_text('[plugins.embedded]\ndurability = "fsync"\n')
    memory = ("check", "-c", str(settings), "--data", "memory")

    done = run_command(*memory, env=environment())
    settings.write_text('[services]\nqueue = "embedded"\n')
    named = run_command(*memory, env=environment())
    none = run_command("check", "--data", str(tmp_path / "data"), "-P", "no:embedded", env=environment())

    assert (done.returncode, "queue: memory" in done.stdout) == (0, True)
    assert "is named in the settings but not configured: there is no data directory" in named.stderr
    assert 'set broker.data = "memory" (`--data memory`) instead' in none.stderr


def test_a_plugin_s_own_section(surroundings: Surroundings, refused: Refused) -> None:
    """A mistake in a plugin's section is located as in the broker's own."""
    surroundings.install("guard", GUARD, {"guard": "guard"})

    message = refused('[plugins.guard]\ncolor = "red"\n')

    assert message == "k.toml:2:1: plugins.guard.color: unknown key; did you mean 'colour'?"


def test_a_plugin_s_own_variable(surroundings: Surroundings, refused: Refused) -> None:
    """A variable that a plugin does not know is refused once the plugins are known."""
    surroundings.install("guard", GUARD, {"guard": "guard"})

    message = refused(LOCAL, KINMQTT__PLUGINS__GUARD__COLOR="red")

    assert message == "KINMQTT__PLUGINS__GUARD__COLOR: sets nothing; did you mean KINMQTT__PLUGINS__GUARD__COLOUR?"


# Ports


def test_a_port_in_use(surroundings: Surroundings) -> None:
    """Where one of two ports is in use the broker exits with status 1 and one message, and neither stays open."""
    first = free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        second = taken.getsockname()[1]

        done = run_command(
            "run", "-l", f"127.0.0.1:{first}", "-l", f"127.0.0.1:{second}", env=surroundings.environment
        )

    assert done.returncode == 1
    messages = [line for line in done.stderr.splitlines() if line.startswith("kinmqtt: ")]
    assert len(messages) == 1
    assert messages[0].startswith(f"kinmqtt: can't listen on 'tcp:{second}:interface=127.0.0.1")
    assert messages[0].endswith("another process listens there (see `ss -ltnp`): stop it, or choose another port")
    assert "Address already in use" in messages[0]
    assert "Traceback" not in done.stderr
    assert "listening on" not in done.stderr
    assert surroundings.bound_ports == [first, second]


def test_the_watch_on_listeners_sees_one(surroundings: Surroundings) -> None:
    """A broker that does listen is seen by what these tests rely on to tell that others did not."""
    with running_broker(env=surroundings.environment) as broker:
        assert surroundings.bound_ports == [broker.port]


def test_the_port_is_free_again_at_once() -> None:
    """A broker can be started again on its port right after it has stopped, with clients connected until then."""
    port = free_port()
    for _ in range(2):
        broker = BrokerProcess(broker_command(port), port)
        try:
            broker.wait_for_line("listening on ")
            with wire(port, "client") as client:
                client.ping()
                broker.stop()
        finally:
            broker.end()


def test_the_version_by_option() -> None:
    """`kinmqtt --version` says what `kinmqtt version` says."""
    assert run_command("--version").stdout == run_command("version").stdout


def test_a_broker_that_lets_nobody_in_is_told_of() -> None:
    """Without an authenticator and without anonymous clients the settings are valid, and of little use."""
    done = run_command("check", "-P", "no:anonymous")

    assert done.returncode == 0
    assert "there is no authenticator: no client can connect" in done.stdout
