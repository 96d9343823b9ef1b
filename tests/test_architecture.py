"""The arrows between our packages, read from the sources: who may import whom, and what stays free of I/O."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

SPI_NEEDS = {"pluggy", "attrs", "attr"}
# What would let the clock, chance or the network into the sans-I/O layer.
IMPURE = {
    "asyncio", "random", "secrets", "select", "selectors", "signal", "socket", "socketserver", "ssl",
    "subprocess", "threading", "time", "twisted", "uvloop", "zope",
}  # fmt: skip
CLOCK_CALLS = {"now", "today", "utcnow"}
DYNAMIC_IMPORTS = {"import_module", "importlib.import_module", "__import__"}
ORDER = (
    ("kinmqtt.mqtt",),
    ("kinmqtt.networks", "kinmqtt.origins", "kinmqtt.settings"),
    ("kinmqtt.builtins",),
    ("kinmqtt.hooks",),
    ("kinmqtt.misplaced_keys", "kinmqtt.config"),
    (
        "kinmqtt.broker.accounts",
        "kinmqtt.broker.allocator",
        "kinmqtt.broker.buffers",
        "kinmqtt.broker.filter_table",
        "kinmqtt.broker.keepalive",
        "kinmqtt.broker.limiting",
        "kinmqtt.broker.locks",
        "kinmqtt.broker.log_lines",
        "kinmqtt.broker.overload",
        "kinmqtt.broker.rights",
        "kinmqtt.broker.slow_consumers",
        "kinmqtt.broker.statistics",
        "kinmqtt.broker.topic_spaces",
    ),
    ("kinmqtt.broker.message",),
    ("kinmqtt.broker.turn",),
    (
        "kinmqtt.broker.runtime",
        "kinmqtt.broker.event_log",
        "kinmqtt.broker.held_events",
        "kinmqtt.broker.promises",
        "kinmqtt.broker.trimming",
    ),
    ("kinmqtt.broker.forwarding",),
    ("kinmqtt.broker.session",),
    ("kinmqtt.broker.routing",),
    ("kinmqtt.broker.retained_sync",),
    ("kinmqtt.broker.ownership",),
    ("kinmqtt.broker.services",),
    ("kinmqtt.broker.connection",),
    ("kinmqtt.broker.handlers",),
    (
        "kinmqtt.broker.assembly",
        "kinmqtt.broker.bridge_health",
        "kinmqtt.broker.bridging",
        "kinmqtt.broker.cluster",
        "kinmqtt.broker.gauges",
        "kinmqtt.broker.housekeeping",
        "kinmqtt.broker.outboxes",
        "kinmqtt.broker.sampling",
        "kinmqtt.broker.sys_topics",
    ),
    ("kinmqtt.broker.lifecycle",),
    ("kinmqtt.broker.broker", "kinmqtt.broker.user_rules"),
    ("kinmqtt.net",),
    ("kinmqtt.cli",),
    ("kinmqtt.testing", "kinmqtt.__main__"),
)
"""The packages of the core, lowest first: each imports only itself and what stands before it, for types as well."""

ANYWHERE = ("kinmqtt._twin",)
"""The choice between compiled and plain modules, which imports nothing and which the package itself makes."""


def under(name: str, *packages: str) -> bool:
    """Tells whether a dotted name is one of these packages or inside one."""
    return any(name == package or name.startswith(package + ".") for package in packages)


def imports(module: str, source: str, *, is_package: bool = False) -> Iterator[str]:
    """Yields the dotted names a module imports, relative ones resolved, also those for type checking only."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                parent = parts[: len(parts) - node.level + is_package]
                base = ".".join([*parent, base] if base else parent)
            # `from kinmqtt import net` imports kinmqtt.net; of a plain name the longer form does no harm.
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in DYNAMIC_IMPORTS:
            yield from (
                arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
            )


def clock_calls(source: str) -> Iterator[str]:
    """Yields the calls of datetime's clock, which need no import of their own."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner, name = ast.unparse(node.func.value), node.func.attr
            if name in CLOCK_CALLS and owner.split(".")[-1] in {"date", "datetime"}:
                yield f"{owner}.{name}"


def ours(name: str) -> bool:
    """Tells whether a dotted name belongs to one of our distributions."""
    top = name.split(".")[0]
    return top == "kinmqtt" or top.startswith("kinmqtt_")


def violations(module: str, source: str, *, is_package: bool = False) -> list[str]:
    """Returns what a module does that its place in the architecture forbids, one sentence each."""
    names = list(imports(module, source, is_package=is_package))
    top = module.split(".")[0]
    if top == "kinmqtt_spi":
        found = spi_violations(module, names)
    elif top == "kinmqtt":
        found = core_violations(module, names)
        if under(module, "kinmqtt.mqtt"):
            found += [f"reads the clock: {call}" for call in clock_calls(source)]
    elif top in ("kinmqtt_metrics", "pyspark_kinmqtt"):
        found = metrics_violations(module, names)
    elif top in KITS:
        found = kit_violations(module, names)
    else:
        found = [f"imports {name}" for name in names if ours(name) and not under(name, "kinmqtt_spi", top, *KITS)]
    return [f"{module} {sentence}" for sentence in found]


KITS = {"kinmqtt_kafka_kit": {"aiokafka"}}
"""What several plugins share, with what each needs beside the SPI and attrs."""


def kit_violations(module: str, names: list[str]) -> list[str]:
    """A kit is a library for plugins: it knows the SPI, what it is for, and no plugin."""
    top = module.split(".")[0]
    allowed = {*sys.stdlib_module_names, "attrs", "kinmqtt_spi", top, *KITS[top]}
    return [f"imports {name}" for name in names if name.split(".")[0] not in allowed]


METRICS_CONTRACT = tuple(f"kinmqtt_metrics.{name}" for name in ("record", "landing", "tables", "durable"))
METRICS_IN_THE_BROKER = tuple(
    f"kinmqtt_metrics.{name}"
    for name in (
        "_plugin",
        "settings",
        "sampling",
        "aggregation",
        "traffic",
        "capture",
        "spool",
        "disk_writer",
        "kafka_settings",
        "kafka_writer",
        "line_writer",
        "segments",
    )
)
SPARK = ("pyspark", "pyarrow", "numpy", "matplotlib", "datasketches", "duckdb", "jinja2")
# Spark's side: what all of it may import, and what each part may import beside that and itself.
METRICS_COMMON = tuple(
    f"kinmqtt_metrics.{name}"
    for name in (
        "errors",
        "formatting",
        "intervals",
        "missing_records",
        "number_arguments",
        "quiet",
        "table_arguments",
        "time_arguments",
        "validity",
    )
)
METRICS_PARTS = {
    "kinmqtt_metrics.spark": (),
    "kinmqtt_metrics.source": (),
    "kinmqtt_metrics.pipeline": ("kinmqtt_metrics.source", "kinmqtt_metrics.spark"),
    "kinmqtt_metrics.learning": ("kinmqtt_metrics.spark",),
    "kinmqtt_metrics.report": (),
    "kinmqtt_metrics.command": ("kinmqtt_metrics.pipeline", "kinmqtt_metrics.learning", "kinmqtt_metrics.report"),
    "pyspark_kinmqtt": ("kinmqtt_metrics.source",),
}


def metrics_violations(module: str, names: list[str]) -> list[str]:
    """The broker's side of the pipeline knows nothing of Spark's, nor Spark's of it; they meet in four modules.

    Of Spark's side, the parts have what is common below them: learning and the report know nothing of each other, nor
    of the pipeline, whose tables they read.
    """
    allowed: tuple[str, ...]
    foreign: tuple[str, ...]
    if under(module, *METRICS_CONTRACT):
        allowed, foreign = METRICS_CONTRACT, ("kinmqtt_spi", *SPARK)
    elif under(module, *METRICS_IN_THE_BROKER):
        allowed, foreign = (*METRICS_CONTRACT, *METRICS_IN_THE_BROKER, "kinmqtt_spi", *KITS), SPARK
    elif module == "kinmqtt_metrics":
        allowed, foreign = METRICS_IN_THE_BROKER, SPARK
    else:
        # A module that is in no part may import none of ours until it has a place.
        parts = [(part, *more) for part, more in METRICS_PARTS.items() if under(module, part)]
        own = METRICS_COMMON if under(module, *METRICS_COMMON) or parts else ()
        allowed = (*METRICS_CONTRACT, *own, *(name for part in parts for name in part))
        foreign = (*METRICS_IN_THE_BROKER, "kinmqtt_spi")
    found = [f"imports {name}" for name in names if ours(name) and not under(name, *allowed)]
    return found + [f"imports {name}" for name in names if under(name, *foreign)]


def spi_violations(module: str, names: list[str]) -> list[str]:
    """The SPI needs pluggy, attrs and itself; its contract tests also need the tools that run them."""
    allowed = {*sys.stdlib_module_names, *SPI_NEEDS, "kinmqtt_spi"}
    if under(module, "kinmqtt_spi.testing"):
        allowed |= {"pytest", "hypothesis"}
    return [f"imports {name}" for name in names if name.split(".")[0] not in allowed]


def rank_of(name: str) -> int | None:
    """The place of a module of the core in :data:`ORDER`, 0 for the lowest; ``None`` where it has none."""
    return next((rank for rank, group in enumerate(ORDER) if under(name, *group)), None)


def core_violations(module: str, names: list[str]) -> list[str]:
    """Each package of the core imports only what stands before it in the order; mqtt/ needs neither I/O nor clock."""
    found = []
    if under(module, "kinmqtt.mqtt"):
        found += [f"imports {name}" for name in names if name.split(".")[0] in IMPURE]
    if module != "kinmqtt" and not under(module, *ANYWHERE):
        rank = rank_of(module)
        if rank is None and module != "kinmqtt.broker":
            found.append("has no place in ORDER")
        for name in names:
            other = rank_of(name)
            if rank is not None and other is not None and other > rank:
                found.append(f"imports {name}, which is above it")
    # A plugin of ours is chosen by its entry point; importing one would make it a part of the core.
    found += [f"imports {name}" for name in names if ours(name) and not under(name, "kinmqtt", "kinmqtt_spi")]
    return found


def circles(sources: Mapping[str, tuple[str, bool]]) -> list[list[str]]:
    """Returns the circles of imports among some modules, those for type checking included: strongly connected ones.

    ``sources`` has by dotted name a module's text, and whether it is a package's ``__init__``. Tarjan's algorithm.
    """
    arrows: dict[str, set[str]] = {}
    for module, (source, is_package) in sources.items():
        found = arrows[module] = set()
        for name in imports(module, source, is_package=is_package):
            while name and name not in sources:
                name = name.rpartition(".")[0]
            if name and name != module:
                found.add(name)
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    result: list[list[str]] = []

    def visit(module: str) -> None:
        number[module] = lowest[module] = len(number)
        stack.append(module)
        for other in sorted(arrows[module]):
            if other not in number:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in stack:
                lowest[module] = min(lowest[module], number[other])
        if lowest[module] == number[module]:
            circle = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(circle) > 1:
                result.append(sorted(circle))

    for module in sorted(arrows):
        if module not in number:
            visit(module)
    return result


# The sources of this repository


def source_roots() -> list[Path]:
    """Returns the `src` folder of every distribution."""
    patterns = ("spi/src", "core/src", "plugins/*/src", "metrics/src")
    return [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]


def modules() -> list[tuple[str, Path]]:
    """Returns the dotted name and the file of every module we ship."""
    found = []
    for root in source_roots():
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found.append((".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return found


def foreign_tests() -> list[Path]:
    """Returns the tests of the distributions that must stand without core."""
    folders = [ROOT / "spi" / "tests", ROOT / "metrics" / "tests", *ROOT.glob("plugins/*/tests")]
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


OWN = [(name, path) for name, path in modules() if not name.startswith("twisted.")]


def test_the_sources_are_found() -> None:
    """An empty list would let every test below pass."""
    found = {name.split(".")[0] for name, _ in OWN}

    assert {"kinmqtt", "kinmqtt_spi"} <= found


@pytest.mark.parametrize(("module", "path"), OWN, ids=[name for name, _ in OWN])
def test_imports_follow_the_arrows(module: str, path: Path) -> None:
    """Each module imports only what its place allows."""
    source = path.read_text(encoding="utf-8")

    assert violations(module, source, is_package=path.name == "__init__.py") == []


def test_no_file_imports_itself_in_a_circle() -> None:
    """Of any two modules one is below the other; imports for type checking count too."""
    sources = {name: (path.read_text(encoding="utf-8"), path.name == "__init__.py") for name, path in OWN}

    assert circles(sources) == []


def test_a_circle_is_found() -> None:
    """Three files in a circle, one arrow of it for types only, and one that stands beside them."""
    sources = {
        "kinmqtt.a": ("from kinmqtt.b import B", False),
        "kinmqtt.b": ("if TYPE_CHECKING:\n    from kinmqtt.c import C", False),
        "kinmqtt.c": ("def late():\n    from kinmqtt import a", False),
        "kinmqtt.d": ("from kinmqtt.a import A", False),
    }

    assert circles(sources) == [["kinmqtt.a", "kinmqtt.b", "kinmqtt.c"]]


@pytest.mark.parametrize(
    ("module", "imported"),
    [
        ("kinmqtt.broker.turn.turn", "kinmqtt.broker.connection.connection.Connection"),
        ("kinmqtt.broker.turn.batch", "kinmqtt.broker.connection.connection.Connection"),
        ("kinmqtt.broker.turn.turn_buffer", "kinmqtt.broker.connection.connection.Connection"),
        ("kinmqtt.broker.turn.turn", "kinmqtt.broker.session.session.Session"),
        ("kinmqtt.broker.turn.batch", "kinmqtt.broker.session.session.Session"),
        ("kinmqtt.broker.session.session", "kinmqtt.broker.connection.connection.Connection"),
        ("kinmqtt.broker.ownership.registry", "kinmqtt.broker.connection.connection.Connection"),
        ("kinmqtt.broker.connection.connection", "kinmqtt.broker.handlers.table.HANDLERS"),
        ("kinmqtt.broker.connection.connection", "kinmqtt.broker.handlers.publish.publish"),
        ("kinmqtt.broker.connection.connection", "kinmqtt.broker.handlers.connect.connect"),
        ("kinmqtt.broker.connection.connection", "kinmqtt.broker.broker.Broker"),
        ("kinmqtt.hooks.context", "kinmqtt.broker.broker.Broker"),
    ],
)
def test_the_twelve_upward_edges_stay_cut(module: str, imported: str) -> None:
    """Each of them was there once, for types only, and made one circle of 40 files."""
    package, _, name = imported.rpartition(".")

    assert violations(module, f"if TYPE_CHECKING:\n    from {package} import {name}") != []


def test_only_the_root_tests_and_cores_own_import_core() -> None:
    """The SPI's and the plugins' tests run where core isn't installed."""
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in foreign_tests()
        for name in imports(path.stem, path.read_text(encoding="utf-8"))
        if under(name, "kinmqtt")
    ]

    assert wrong == []


def test_twisteds_packages_stay_twisteds() -> None:
    """An __init__.py beside the dropin would overwrite Twisted's own when the wheel is installed."""
    folder = ROOT / "core" / "src" / "twisted"

    files = [path.relative_to(folder).as_posix() for path in folder.rglob("*.py")]

    assert files == ["plugins/kinmqtt_plugin.py"]


# That the rules bite


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("kinmqtt_guard.rules", "import kinmqtt"),
        ("kinmqtt_guard.rules", "from kinmqtt.broker import router"),
        ("kinmqtt_guard", "def late():\n    from kinmqtt.config import Config"),
        ("kinmqtt_guard", "import kinmqtt_redis_session"),
        ("kinmqtt_kafka_kit.client", "from kinmqtt_bridge_kafka.settings import SinkSettings"),
        ("kinmqtt_kafka_kit.client", "import kinmqtt"),
        ("kinmqtt_kafka_kit.client", "import twisted"),
        ("kinmqtt_metrics.sink", "if TYPE_CHECKING:\n    from kinmqtt import mqtt"),
        ("kinmqtt_metrics.segments", "from kinmqtt_metrics import formatting"),
        ("kinmqtt_metrics.report.plots", "from kinmqtt_metrics.segments import Segment"),
        ("kinmqtt_metrics.report.gaps", "from kinmqtt_metrics.pipeline.commits import Commits"),
        ("kinmqtt_metrics.report", "def late():\n    from kinmqtt_metrics import learning"),
        ("kinmqtt_metrics.learning.job", "from kinmqtt_metrics.report import formatting"),
        ("kinmqtt_metrics.learning.job", "from ..pipeline import settings"),
        ("kinmqtt_metrics.source.reader", "from kinmqtt_metrics.pipeline import settings"),
        ("kinmqtt_metrics.pipeline.run", "from kinmqtt_metrics.report import make"),
        ("kinmqtt_metrics.formatting", "from kinmqtt_metrics.report import colours"),
        ("kinmqtt_metrics.spark", "from kinmqtt_metrics.pipeline.settings import PipelineSettings"),
        ("kinmqtt_metrics.new", "from kinmqtt_metrics.report import colours"),
        ("pyspark_kinmqtt", "from kinmqtt_metrics.pipeline import run"),
        ("kinmqtt_spi.values", "import kinmqtt.mqtt.packets"),
        ("kinmqtt_spi.values", "from twisted.internet.defer import Deferred"),
        ("kinmqtt_spi.values", "import pytest"),
        ("kinmqtt_spi.values", "import kinmqtt_guard"),
        ("kinmqtt.mqtt.framing", "import kinmqtt.broker.routing.router"),
        ("kinmqtt.mqtt.framing", "from kinmqtt import net"),
        ("kinmqtt.mqtt.framing", "from kinmqtt.hooks import manager"),
        ("kinmqtt.mqtt.framing", "from ..broker.routing import router"),
        ("kinmqtt.mqtt.framing", "from .. import net"),
        ("kinmqtt.mqtt.framing", "from twisted.internet import defer"),
        ("kinmqtt.mqtt.framing", "import asyncio.events"),
        ("kinmqtt.mqtt.framing", "from time import monotonic"),
        ("kinmqtt.mqtt.framing", "import socket, selectors"),
        ("kinmqtt.mqtt.framing", "from random import randint"),
        ("kinmqtt.mqtt.framing", "import datetime\nstarted = datetime.datetime.now(datetime.UTC)"),
        ("kinmqtt.mqtt.framing", "from datetime import datetime\nstarted = datetime.utcnow()"),
        ("kinmqtt.broker.routing.router", "from kinmqtt.net import protocol"),
        ("kinmqtt.broker.routing.router", "from ...net.protocol import Protocol"),
        ("kinmqtt.broker.routing.router", "import kinmqtt.cli.tap"),
        ("kinmqtt.broker.routing.router", "from kinmqtt.net import *"),
        (
            "kinmqtt.broker.routing.router",
            "from importlib import import_module\nimport_module('kinmqtt.net.protocol')",
        ),
        ("kinmqtt.broker.routing.router", "__import__('kinmqtt.cli')"),
        ("kinmqtt.hooks.manager", "import kinmqtt.net.listeners"),
        ("kinmqtt.config", "import kinmqtt.net"),
        ("kinmqtt.broker.new", "import time"),
        ("kinmqtt.builtins.memory", "import kinmqtt_guard"),
        ("kinmqtt.net.protocol", "from kinmqtt.cli.main import main"),
    ],
)
def test_a_wrong_import_is_caught(module: str, source: str) -> None:
    """Each of these would turn an arrow around."""
    assert violations(module, source) != []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("kinmqtt_guard.rules", "import kinmqtt_spi, kinmqtt_guard.tables, twisted"),
        ("kinmqtt_guard.rules", "from . import tables"),
        ("kinmqtt_guard.rules", "from kinmqtt_kafka_kit import options"),
        ("kinmqtt_kafka_kit.client", "import aiokafka, asyncio, kinmqtt_spi\nfrom kinmqtt_kafka_kit import errors"),
        ("kinmqtt_metrics.learning.job", "from kinmqtt_metrics import formatting, tables\nfrom ..spark import start"),
        ("kinmqtt_metrics.report.gaps", "from kinmqtt_metrics.intervals import Intervals\nimport matplotlib"),
        ("kinmqtt_metrics.pipeline.run", "from kinmqtt_metrics.source.folder import File\nfrom ..spark import start"),
        ("kinmqtt_metrics.command", "from kinmqtt_metrics import learning, report"),
        ("kinmqtt_spi.values", "import time, asyncio, attrs, pluggy, kinmqtt_spi.reasons"),
        ("kinmqtt_spi.testing.session", "import pytest"),
        ("kinmqtt.mqtt.framing", "from kinmqtt.mqtt import packets\nfrom . import codec\nimport struct"),
        ("kinmqtt.mqtt.framing", "from datetime import datetime\nx = datetime(2000, 1, 1)\nqueue.now()"),
        ("kinmqtt.broker.routing.router", "from twisted.internet import defer\nfrom kinmqtt.mqtt import packets"),
        ("kinmqtt.net.protocol", "import kinmqtt.broker.broker, twisted\nfrom ..mqtt import framing"),
        ("kinmqtt.cli.tap", "from kinmqtt.net import listeners\nfrom twisted.python import usage"),
        ("kinmqtt.cli.run", "import kinmqtt.net.uvloop, twisted"),
        ("kinmqtt.cli.main", "import twisted.logger, kinmqtt.broker.broker"),
    ],
)
def test_a_right_import_passes(module: str, source: str) -> None:
    """None of these is forbidden."""
    assert violations(module, source) == []


def test_relative_imports_in_a_package_start_at_the_package() -> None:
    """In an __init__.py one dot is the package itself, elsewhere the folder around the module."""
    assert list(imports("kinmqtt.mqtt", "from . import codec", is_package=True)) == ["kinmqtt.mqtt.codec"]
    assert list(imports("kinmqtt.mqtt.framing", "from . import codec")) == ["kinmqtt.mqtt.codec"]


def test_the_architecture_page_names_what_there_is() -> None:
    """Every file, package, class and function that ARCHITECTURE.md names in backticks exists."""
    folders = ("core", "spi", "metrics", "plugins", "tests", "benchmarks", ".ci")
    sources = [path for folder in folders for path in files_in(folder)]
    known = {part for path in sources for part in (path.stem, path.parent.name)} | {"sys", "setprofile"}
    for path in sources:
        if path.suffix == ".py":
            known.update(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = [text for text in re.findall(r"`([^`\n]+)`", page) if re.fullmatch(r"[\w./]+(\(\))?", text)]
    parts = {(text, part) for text in named for part in re.split(r"[./()]", text) if part}

    assert len(named) > 100
    assert sorted(text for text, part in parts if part not in known | {"py", "md", "toml", "cfg", "sha256"}) == []


def files_in(folder: str) -> list[Path]:
    """Returns the files of a folder of the checkout, but for what builds and caches leave there."""
    skipped = {"__pycache__", "build", "node_modules", "dist"}
    found = (path for path in (ROOT / folder).rglob("*") if path.is_file())
    return [path for path in found if not skipped.intersection(path.relative_to(ROOT).parts)]


def test_compiled_modules_wait_for_nothing_while_they_handle_an_error() -> None:
    """A compiled coroutine that waits in an except or finally leaves the error standing for whoever runs next."""
    setup = (ROOT / "core" / "setup.py").read_text(encoding="utf-8")
    listed = next(
        node.value
        for node in ast.walk(ast.parse(setup))
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "COMPILED"
    )
    found = []
    for path in ast.literal_eval(listed):
        for node in ast.walk(ast.parse((ROOT / "core" / "src" / path).read_text(encoding="utf-8"))):
            if isinstance(node, ast.AsyncWith | ast.AsyncFor):
                found.append(f"{path}:{node.lineno}")
            if isinstance(node, ast.Try):
                parts = [*node.handlers, *node.finalbody]
                found += [f"{path}:{x.lineno}" for part in parts for x in ast.walk(part) if isinstance(x, ast.Await)]

    assert found == []
