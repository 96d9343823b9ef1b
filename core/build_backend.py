"""setuptools, and what a compiled wheel takes besides (PEP 517); where it can't be compiled, the wheel is plain."""

from __future__ import annotations

import os
import runpy
import shutil
import sysconfig
import traceback
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403

_HERE = Path(__file__).resolve().parent

_SPI = _HERE.parent / "spi" / "src"

_TWIN = runpy.run_path(str(_HERE / "src" / "kinmqtt" / "_twin.py"))

_TO_COMPILE = ["mypy[mypyc]>=2.1", "Twisted>=24.7", "attrs>=23.2", "pluggy>=1.5"]
"""The compiler, and what the types of the compiled modules speak of."""


def _can_compile() -> bool:
    """Whether this machine has what it takes, as far as that can be told beforehand."""
    if _TWIN["asks_for_source"]():
        return False
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    header = Path(sysconfig.get_path("include"), "Python.h")
    return os.name == "nt" or (shutil.which(compiler) is not None and header.exists())


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """What a wheel is built with."""
    requires: list[str] = build_meta.get_requires_for_build_wheel(config_settings)
    if _can_compile():
        requires += _TO_COMPILE
        if not _SPI.is_dir():
            requires.append("kinmqtt-spi==0.1.*")
    return requires


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """A compiled wheel, or else a plain one."""
    if _can_compile():
        try:
            return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)
        except (Exception, SystemExit):
            traceback.print_exc()
            print("kinmqtt-core could not be compiled (above): the wheel holds plain Python, which is slower")
    os.environ["KINMQTT_PURE"] = "1"
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)
