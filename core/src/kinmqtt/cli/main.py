"""The ``kinmqtt`` command."""

from __future__ import annotations

import argparse
import ipaddress
import os
import re
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from kinmqtt.cli.outbox.arguments import add_outbox
from kinmqtt.cli.plugin_commands import add_plugin_commands
from kinmqtt.cli.tap import install_asyncio_reactor
from kinmqtt.config import Overrides, Settings, load
from kinmqtt_spi.errors import AssemblyError, SettingsError, SpiError
from kinmqtt_spi.services import FAMILIES
from kinmqtt_spi.settings import did_you_mean


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status: 0, 1 for mistakes in settings or plugins, 2 for wrong usage."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        parser = _parser(arguments)
        parsed, unknown = parser.parse_known_args(arguments)
        if unknown:
            # Show the usage of the subcommand.
            meant = getattr(parsed, "parser", parser)
            hint = getattr(parsed, "hint", "") or _hint(unknown, meant)
            meant.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        status: int = parsed.command(parsed)
    except SettingsError as error:
        return _complain(*error.problems)
    except SpiError as error:
        return _complain(*str(error).splitlines())
    except BrokenPipeError:
        # The reader of the output has closed the pipe; prevent Python's error when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


def _hint(unknown: Sequence[str], parser: argparse.ArgumentParser) -> str:
    """Return a hint on unknown arguments, as the end of a message."""
    options = [option for action in parser._actions for option in action.option_strings]
    for word in unknown:
        if word.endswith(".toml") and "-c" in options:
            return f"; a settings file is given as -c {word}"
        near = did_you_mean(word.partition("=")[0], options, quote="") if word.startswith("--") else ""
        if near:
            return near
    return ""


class _Commands(argparse.ArgumentParser):
    """A parser that suggests the command for a misspelt one."""

    def error(self, message: str) -> NoReturn:
        """Show the usage and the error, and exit with 2."""
        if match := re.match(r"argument COMMAND: invalid choice: '(.*?)' \(choose from (.*)\)", message):
            message += did_you_mean(match[1], re.findall(r"[\w-]+", match[2]), quote="")
        super().error(message)


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    parser = _Commands(prog="kinmqtt", description="A pluggable MQTT broker.")
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="show the version, like the command version")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run the broker in the foreground")
    _add_settings(run)
    run.add_argument("--log-level", choices=("debug", "info", "warn", "error"), default="info")
    run.set_defaults(command=_run)
    check = commands.add_parser("check", help="check the settings and the plugins without starting the broker")
    _add_settings(check)
    check.set_defaults(command=_check)
    plugins = commands.add_parser("plugins", help="list the installed plugins, which are used, and why")
    _add_settings(plugins)
    plugins.set_defaults(command=_plugins)
    _add_store(commands)
    add_outbox(commands, _add_settings, _outbox)
    _add_explain(commands)
    _add_new_plugin(commands)
    version = commands.add_parser("version", help="show the version")
    version.set_defaults(command=_version)
    if not arguments or arguments[0] not in commands.choices:
        # Plugins' commands are loaded only if one of them may be meant: not for a core command such as run.
        add_plugin_commands(commands, tuple(commands.choices), arguments[0] if arguments else None)
    for command in commands.choices.values():
        command.set_defaults(parser=command)
    return parser


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-c", "--config", type=Path, metavar="FILE", help="the settings file (TOML)")
    parser.add_argument(
        "-l",
        "--listen",
        action="append",
        default=[],
        metavar="ENDPOINT",
        help="a listener that replaces those of the settings; may be given several times",
    )
    parser.add_argument("--data", metavar="DIRECTORY", help="the data directory; memory for no persistence")
    parser.add_argument(
        "--allow-anonymous",
        action="store_true",
        default=None,
        help="accept clients that no authenticator decides on",
    )
    parser.add_argument("-P", dest="plugins", action="append", default=[], metavar="no:NAME", help="disable a plugin")


def _add_explain(commands: Any) -> None:
    explain = commands.add_parser("explain", help="show each plugin's answer about a client, and how long it takes")
    _add_settings(explain)
    explain.add_argument("--client", required=True, metavar="ID", help="the client id")
    explain.add_argument("--user", metavar="NAME", help="the user name")
    explain.add_argument(
        "--password-stdin",
        action="store_true",
        help="read a password from standard input, and call the authenticators",
    )
    explain.add_argument("--address", default="127.0.0.1", help="the client's address (default: %(default)s)")
    explain.add_argument("--listener", metavar="NAME", help="the listener it connects to (default: the first)")
    explain.add_argument("--mqtt", type=int, choices=(3, 4, 5), default=5, help="the protocol level (default: 5)")
    explain.add_argument("--qos", type=int, choices=(0, 1, 2), default=0, help="the QoS (default: 0)")
    explain.add_argument("--retain", action="store_true", help="the message is to be retained")
    actions = explain.add_mutually_exclusive_group()
    for action, metavar, summary in (
        ("connect", None, "whether it may connect (the default question)"),
        ("publish", "TOPIC", "whether it may publish to the topic"),
        ("subscribe", "FILTER", "whether it may subscribe to the filter"),
        ("receive", "TOPIC", "whether it may receive messages of the topic"),
        ("will", "TOPIC", "whether it may have a will on the topic"),
    ):
        if metavar is None:
            actions.add_argument(f"--{action}", action="store_true", help=summary)
        else:
            actions.add_argument(f"--{action}", metavar=metavar, help=summary)
    explain.set_defaults(command=_explain)


def _add_new_plugin(commands: Any) -> None:
    new = commands.add_parser("new-plugin", help="create a new plugin: a distribution with tests")
    new.add_argument("name", metavar="NAME", help="the plugin's name: small letters, digits and _")
    new.add_argument("--family", required=True, choices=FAMILIES, help="the plugin's family")
    new.add_argument(
        "--directory", type=Path, metavar="DIRECTORY", help="the directory to create (default: ./kinmqtt-NAME)"
    )
    new.set_defaults(command=_new_plugin)


def _add_store(commands: Any) -> None:
    store = commands.add_parser("store", help="check, export, import or compact a data directory")
    actions = store.add_subparsers(required=True, metavar="ACTION")
    for name, directory, summary in (
        ("check", "the data directory", "read everything, and show counts and damage"),
        ("export", "the data directory", "write all contents to standard output, as lines of JSON"),
        ("import", "a new directory, or an empty one", "read an export from standard input into a new store"),
        ("compact", "the data directory", "rewrite the live contents, and remove everything else"),
    ):
        action = actions.add_parser(name, help=summary)
        action.add_argument("directory", type=_directory, metavar="DIRECTORY", help=directory)
        hint = "; the export is read from standard input" if name == "import" else ""
        action.set_defaults(command=_store, action=name, skip_damaged=False, parser=action, hint=hint)
        if name == "export":
            action.add_argument("--skip-damaged", action="store_true", help="skip damaged data and report it")


def _directory(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("the name is empty: give a directory")
    if text == "memory":
        raise argparse.ArgumentTypeError("--data memory has no directory: give a directory (such as ./memory)")
    return Path(text)


def _settings(parsed: argparse.Namespace) -> Settings:
    disabled = []
    for choice in parsed.plugins:
        word, _, name = choice.partition(":")
        if word != "no" or not name:
            raise AssemblyError(f"-P {choice}: expected no:NAME, with the name of a plugin to disable")
        disabled.append(name)
    overrides = Overrides(tuple(parsed.listen), parsed.data, parsed.allow_anonymous, tuple(disabled))
    return load(parsed.config, overrides, os.environ)


def _reactor(settings: Settings) -> Any:
    install_asyncio_reactor(settings.broker.event_loop)
    from twisted.internet import reactor

    return reactor


def _run(parsed: argparse.Namespace) -> int:
    from twisted.logger import (
        FilteringLogObserver,
        LogLevel,
        LogLevelFilterPredicate,
        globalLogBeginner,
        textFileLogObserver,
    )

    from kinmqtt.cli.run import bear_further_signals, build_service
    from kinmqtt.hooks.denial_log import DenialLogger

    settings = _settings(parsed)
    reactor = _reactor(settings)
    service = build_service(settings, reactor, DenialLogger(enabled=parsed.log_level == "debug"))
    level = LogLevel.levelWithName(parsed.log_level)
    observer = FilteringLogObserver(textFileLogObserver(sys.stderr), [LogLevelFilterPredicate(defaultLogLevel=level)])
    globalLogBeginner.beginLoggingTo([observer], redirectStandardIO=False)
    reactor.callWhenRunning(service.startService)
    reactor.addSystemEventTrigger("before", "shutdown", service.stopService)
    bear_further_signals(reactor)
    reactor.run()
    if service.expelled is not None:
        _start_again()
    return _complain(service.failed) if service.failed is not None else 0


def _start_again() -> NoReturn:
    """Become a new process of the same command: as a member of its cluster, this one is over."""
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _check(parsed: argparse.Namespace) -> int:
    from kinmqtt.broker.user_rules import notes_on_users
    from kinmqtt.cli.run import build_assembly, limits_in_words
    from kinmqtt.net.remarks import remarks, warnings

    settings = _settings(parsed)
    assembly, listeners = build_assembly(settings, _reactor(settings))
    if assembly.writes_data_directory and (problems := settings.problems_with_data_directory()):
        raise SettingsError(problems)
    print("listen: " + ", ".join(listener.summary for listener in listeners))
    for listener in listeners:
        for line in remarks(listener):
            print(line)
        for line in warnings(listener, assembly.clock.now()):
            print(f"warning: {line}")
    for family, plugin in assembly.providers.items():
        print(f"{family}: {plugin}")
    print("hooks run in this order: " + ", ".join(assembly.manager.active))
    print(limits_in_words(assembly))
    if not any(assembly.manager.implementations(hook) for hook in ("authenticate", "exchange")):
        print("there is no authenticator: no client can connect; install one, or allow anonymous clients")
    unused = {choice.candidate.name: choice.why for choice in assembly.manager.choices if not choice.active}
    for line in settings.ineffective_sections(unused):
        print(line)
    for note in notes_on_users(assembly):
        print(note)
    print("the settings are valid")
    return 0


def _plugins(parsed: argparse.Namespace) -> int:
    from kinmqtt.cli.run import build_assembly

    settings = _settings(parsed)
    assembly, _ = build_assembly(settings, _reactor(settings))
    manager = assembly.manager
    serves = {plugin: [f for f, p in assembly.providers.items() if p == plugin] for plugin in manager.active}
    for choice in manager.choices:
        candidate = choice.candidate
        mark = "+" if choice.active else "-"
        print(f"{mark} {candidate.name} ({candidate.source}): {choice.why}")
        if choice.active:
            if serves[candidate.name]:
                print(f"    serves: {', '.join(serves[candidate.name])}")
            opens = manager.failing_openly(candidate.name)
            notes = {hook: f" (fails {'open' if is_open else 'closed'})" for hook, is_open in opens.items()}
            hooks = [hook + notes.get(hook, "") for hook in manager.hooks_of(candidate.name)]
            print(f"    hooks: {', '.join(hooks)}")
            claimed = assembly.spaces.claimed_by(candidate.name)
            if claimed:
                print(f"    claims: {', '.join(claimed)}")
    return 0


def _explain(parsed: argparse.Namespace) -> int:
    from kinmqtt.broker.broker import Broker
    from kinmqtt.cli.explain import Question, explain, plan_named, run_once
    from kinmqtt.cli.run import build_assembly, version
    from kinmqtt_spi.services.authentication import ConnectRequest
    from kinmqtt_spi.services.authorization import Action
    from kinmqtt_spi.values import Address

    try:
        ipaddress.ip_address(parsed.address)
    except ValueError as error:
        raise AssemblyError(f"--address: {error}") from error
    password = sys.stdin.buffer.readline().rstrip(b"\r\n") if parsed.password_stdin else None
    settings = _settings(parsed)
    reactor = _reactor(settings)
    assembly, _ = build_assembly(settings, reactor)
    listener = plan_named(assembly, parsed.listener).name
    asked = [(action, topic) for action in Action if (topic := getattr(parsed, action.value)) is not None]
    action, topic = asked[0] if asked else (None, "")
    address = Address(parsed.address, 0)
    request = ConnectRequest(parsed.client, parsed.user, password, address, listener, parsed.mqtt)
    question = Question(request, action is None or password is not None, action, topic, parsed.qos, parsed.retain)
    broker = Broker(assembly, lambda call: reactor.callLater(0, call), secrets.token_hex, version())
    user = f"user {parsed.user!r}" if parsed.user is not None else "no user name"
    print(f"client {parsed.client!r}, {user}, from {parsed.address} at {listener}")
    for part in run_once(reactor, lambda: explain(broker, question)):
        print("\n".join(part.lines()))
    return 0


def _new_plugin(parsed: argparse.Namespace) -> int:
    from kinmqtt.cli.new_plugin import write

    directory = parsed.directory or Path(f"kinmqtt-{parsed.name.replace('_', '-')}")
    for line in write(parsed.name, parsed.family, directory):
        print(line)
    return 0


def _store(parsed: argparse.Namespace) -> int:
    from kinmqtt.builtins.embedded.command import run

    return run(parsed.action, parsed.directory, skip_damaged=parsed.skip_damaged)


def _outbox(parsed: argparse.Namespace) -> int:
    from kinmqtt.cli.outbox.actions import run

    settings = _settings(parsed)
    return run(settings, _reactor(settings), parsed)


def _version(parsed: argparse.Namespace) -> int:
    import platform

    from twisted import __version__ as twisted_version

    from kinmqtt import TWIN
    from kinmqtt.cli.run import version

    print(f"kinmqtt {version()} (Python {platform.python_version()}, Twisted {twisted_version}; {TWIN})")
    return 0


class _ShowVersion(argparse.Action):
    """Implements ``--version``, which users try first."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        parser.exit(_version(argparse.Namespace()))


def _complain(*lines: str) -> int:
    for line in lines:
        print(f"kinmqtt: {line}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
