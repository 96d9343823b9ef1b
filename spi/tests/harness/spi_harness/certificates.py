"""Makes certificates that are their own authority, and others that they sign; and fixtures with them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TypeAlias

import pytest

Pair: TypeAlias = tuple[Path, Path]
"""A certificate and its key, as files."""


def self_signed(folder: Path, name: str, names: str = "IP:127.0.0.1") -> Pair:
    """Return a certificate and its key, as files; ``names`` are those of ``subjectAltName``."""
    return _made(folder, name, names)


def signed(folder: Path, name: str, authority: Pair) -> Pair:
    """Return a client's certificate and its key, as files; ``authority`` are those of the one that signs it."""
    certificate, key = map(str, authority)
    return _made(folder, name, f"DNS:{name}.example", "-CA", certificate, "-CAkey", key)


def _made(folder: Path, name: str, names: str, *more: str) -> Pair:
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = [
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
        "-days", "2", *more,
        "-subj", f"/CN={name}", "-addext", f"subjectAltName={names}", "-keyout", str(key), "-out", str(certificate),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return certificate, key


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the certificates are."""
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def right(folder: Path) -> Pair:
    """A certificate that names the server."""
    return self_signed(folder, "right")


@pytest.fixture(scope="module")
def wrong(folder: Path) -> Pair:
    """A certificate that names another one."""
    return self_signed(folder, "wrong", "DNS:elsewhere.example,IP:127.0.0.9")
