"""Builds kinmqtt-core; what pyproject.toml can't say is which modules are compiled.

The message path is compiled with mypyc, from the very source that runs where there is no compiler. A wheel is
compiled where that works and plain where it doesn't; ``KINMQTT_PURE=1`` asks for a plain one. ``build_ext --inplace``
compiles a checkout (``python3 dev.py compile``).
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "src"

COMPILED = (
    "kinmqtt/broker/batch.py",
    "kinmqtt/broker/broker.py",
    "kinmqtt/broker/connection.py",
    "kinmqtt/broker/delivery.py",
    "kinmqtt/broker/fanout.py",
    "kinmqtt/broker/full_queue.py",
    "kinmqtt/broker/inbound.py",
    "kinmqtt/broker/limiting.py",
    "kinmqtt/broker/overload.py",
    "kinmqtt/broker/publication.py",
    "kinmqtt/broker/publishing.py",
    "kinmqtt/broker/router.py",
    "kinmqtt/broker/runtime.py",
    "kinmqtt/broker/session.py",
    "kinmqtt/broker/statistics.py",
    "kinmqtt/broker/turn.py",
    "kinmqtt/broker/waiting.py",
    "kinmqtt/broker/wheel.py",
    "kinmqtt/mqtt/codec/publish.py",
    "kinmqtt/mqtt/connection.py",
    "kinmqtt/mqtt/framing.py",
    "kinmqtt/mqtt/packets.py",
    "kinmqtt/mqtt/session.py",
)
"""What a message goes through between two sockets. They call each other directly, and so are compiled together."""


def extensions() -> list[Any]:
    """The extension modules, where this build is to have any."""
    if os.environ.get("KINMQTT_PURE") or not {"bdist_wheel", "build_ext"}.intersection(sys.argv):
        return []
    from mypyc.build import mypycify

    spi = HERE.parent / "spi" / "src"
    os.environ["MYPYPATH"] = os.pathsep.join([str(SOURCE), *([str(spi)] if spi.is_dir() else [])])
    paths = [str(SOURCE / path) for path in COMPILED]
    options = ["--config-file=", "--namespace-packages", "--explicit-package-bases", "--follow-imports=silent"]
    return mypycify([*options, *paths], opt_level="3", group_name="kinmqtt", target_dir=str(HERE / "build" / "mypyc"))


class BuildTwin(build_ext):
    """Compiles, and notes down of which source."""

    def run(self) -> None:
        super().run()
        if self.extensions:
            twin = runpy.run_path(str(SOURCE / "kinmqtt" / "_twin.py"))
            root = SOURCE if self.inplace else Path(self.build_lib)
            twin["write_note"](root / "kinmqtt", SOURCE / "kinmqtt", [path.partition("/")[2] for path in COMPILED])


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildTwin})
