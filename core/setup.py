"""Builds kinmqtt-core; what pyproject.toml can't say is which modules are compiled.

The message path is compiled with mypyc, from the very source that runs where there is no compiler. A wheel is
compiled where that works and plain where it doesn't; ``KINMQTT_PURE=1`` asks for a plain one. ``build_ext --inplace``
compiles a checkout (``python3 dev.py compile``).
"""

from __future__ import annotations

import os
import runpy
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "src"
SPI = HERE.parent / "spi" / "src"
"""Where a checkout has the SPI; absent where only this distribution's sources are."""

COMPILED = (
    "kinmqtt/broker/accounts.py",
    "kinmqtt/broker/broker.py",
    "kinmqtt/broker/buffers.py",
    "kinmqtt/broker/cluster/receiver.py",
    "kinmqtt/broker/connection/connection.py",
    "kinmqtt/broker/connection/held.py",
    "kinmqtt/broker/connection/intake.py",
    "kinmqtt/broker/connection/output.py",
    "kinmqtt/broker/connection/packet_deadline.py",
    "kinmqtt/broker/connection/read_gate.py",
    "kinmqtt/broker/connection/reader.py",
    "kinmqtt/broker/connection/writer.py",
    "kinmqtt/broker/connection/route.py",
    "kinmqtt/broker/connection/unsent.py",
    "kinmqtt/broker/filter_table.py",
    "kinmqtt/broker/forwarding/batch_format.py",
    "kinmqtt/broker/forwarding/forwarder.py",
    "kinmqtt/broker/forwarding/node_link.py",
    "kinmqtt/broker/forwarding/route_table.py",
    "kinmqtt/broker/handlers/acknowledge.py",
    "kinmqtt/broker/handlers/common.py",
    "kinmqtt/broker/handlers/disconnect.py",
    "kinmqtt/broker/handlers/incoming_publish.py",
    "kinmqtt/broker/handlers/publish.py",
    "kinmqtt/broker/handlers/publish_answer.py",
    "kinmqtt/broker/keepalive.py",
    "kinmqtt/broker/limiting.py",
    "kinmqtt/broker/message/audience.py",
    "kinmqtt/broker/message/delivery.py",
    "kinmqtt/broker/message/message_ids.py",
    "kinmqtt/broker/message/publication.py",
    "kinmqtt/broker/message/ticket.py",
    "kinmqtt/broker/overload.py",
    "kinmqtt/broker/routing/deliver.py",
    "kinmqtt/broker/routing/fanout.py",
    "kinmqtt/broker/routing/fanouts.py",
    "kinmqtt/broker/routing/group_table.py",
    "kinmqtt/broker/routing/groups.py",
    "kinmqtt/broker/routing/shared.py",
    "kinmqtt/broker/routing/sliced_delivery.py",
    "kinmqtt/broker/routing/publisher.py",
    "kinmqtt/broker/routing/incremental_fanout.py",
    "kinmqtt/broker/routing/routed.py",
    "kinmqtt/broker/routing/router.py",
    "kinmqtt/broker/routing/taps.py",
    "kinmqtt/broker/routing/target.py",
    "kinmqtt/broker/runtime.py",
    "kinmqtt/broker/services.py",
    "kinmqtt/broker/session/account_holder.py",
    "kinmqtt/broker/session/memory_queue.py",
    "kinmqtt/broker/session/outbox_session.py",
    "kinmqtt/broker/session/overflow.py",
    "kinmqtt/broker/session/overflow_action.py",
    "kinmqtt/broker/session/owner.py",
    "kinmqtt/broker/session/patterns.py",
    "kinmqtt/broker/session/queue.py",
    "kinmqtt/broker/session/receive_rights.py",
    "kinmqtt/broker/session/sender.py",
    "kinmqtt/broker/session/session.py",
    "kinmqtt/broker/session/stored_queue.py",
    "kinmqtt/broker/session/window.py",
    "kinmqtt/broker/statistics.py",
    "kinmqtt/broker/turn/batch.py",
    "kinmqtt/broker/turn/turn_buffer.py",
    "kinmqtt/broker/turn/ports.py",
    "kinmqtt/broker/turn/recovery.py",
    "kinmqtt/broker/turn/slices.py",
    "kinmqtt/broker/turn/turn.py",
    "kinmqtt/mqtt/acknowledgements.py",
    "kinmqtt/mqtt/codec/publish.py",
    "kinmqtt/mqtt/connection_state.py",
    "kinmqtt/mqtt/framing.py",
    "kinmqtt/mqtt/packets.py",
    "kinmqtt/mqtt/qos_state.py",
)
"""What a message goes through between two sockets. They call each other directly, and so are compiled together."""


TWIN = runpy.run_path(str(SOURCE / "kinmqtt" / "_twin.py"))

COMPILES = not TWIN["asks_for_source"]() and bool({"bdist_wheel", "build_ext"}.intersection(sys.argv))


def spi() -> Path:
    """The SPI's package: a checkout's, or else the installed one."""
    if SPI.is_dir():
        return SPI / "kinmqtt_spi"
    spec = find_spec("kinmqtt_spi")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("compiling takes kinmqtt-spi")
    return Path(spec.origin).parent


# Before anything is compiled: what is saved from now on makes the compiled modules old.
SOURCES = TWIN["digests"](SOURCE / "kinmqtt", spi()) if COMPILES else {}


def extensions() -> list[Any]:
    """The extension modules, where this build is to have any."""
    if not COMPILES:
        return []
    from mypyc.build import include_dir, mypycify

    os.environ["MYPYPATH"] = os.pathsep.join(str(path) for path in (SOURCE, SPI) if path.is_dir())
    paths = [str(SOURCE / path) for path in COMPILED]
    options = ["--config-file=", "--namespace-packages", "--explicit-package-bases", "--follow-imports=silent"]
    made = mypycify([*options, *paths], opt_level="3", group_name="kinmqtt", target_dir=str(HERE / "build" / "mypyc"))
    runtime = HERE / "build" / "runtime"
    mended = mend_runtime(Path(include_dir()), runtime)
    for each in made:
        each.include_dirs.insert(0, str(runtime))
        each.depends += [str(path) for path in mended]
        if os.name != "nt":
            # gcc spends a third of its time on looking for misleading indentation in generated code, and much of the
            # rest on telling a debugger about it.
            each.extra_compile_args += ["-w", "-g0"]
    return made


THROWS = "PyObject_CallFunctionObjArgs(_m, type, value, traceback, NULL)"
"""How mypyc's runtime hands an error to what a coroutine awaits: with three arguments, as Python 3.12 deprecates."""


def mend_runtime(original: Path, folder: Path) -> list[Path]:
    """Put files of mypyc's runtime that are mended here into a folder, where the compiler looks first.

    The warning of a deprecated ``throw`` would take the error's place where warnings are errors, as in the tests of
    many plugins: the broker would see another error than the one that was raised (mypyc's issue 1214). A runtime that
    does not have that call any more is left alone.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "misc_ops.c"
    source = original / file.name
    text = source.read_text(encoding="utf-8") if source.exists() else ""
    if THROWS not in text:
        file.unlink(missing_ok=True)
        return []
    mended = text.replace(THROWS, "PyObject_CallOneArg(_m, value)")
    # A file that stays as it is compiles nothing anew.
    if not file.exists() or file.read_text(encoding="utf-8") != mended:
        file.write_text(mended, encoding="utf-8")
    return [file]


class BuildTwin(build_ext):
    """Compiles, and notes down what that made of which sources."""

    def run(self) -> None:
        if not self.extensions:
            return
        root = SOURCE if self.inplace else Path(self.build_lib)
        # What an earlier list compiled would lie there for nothing, and go into the wheel.
        kept = set() if self.inplace else {Path(path) for path in self.get_outputs()}
        for path in [*root.rglob("*" + EXTENSION_SUFFIXES[0])]:
            if path not in kept:
                path.unlink()
        (root / "kinmqtt" / TWIN["NOTE"]).unlink(missing_ok=True)
        super().run()
        names = (self.get_ext_filename(self.get_ext_fullname(made.name)) for made in self.extensions)
        TWIN["write_note"](root / "kinmqtt", SOURCES, [Path(name).as_posix() for name in names])


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildTwin})
