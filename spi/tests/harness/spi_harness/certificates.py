"""Makes certificates that are their own authority, and others that they sign."""

from __future__ import annotations

import subprocess
from pathlib import Path


def self_signed(folder: Path, name: str, names: str = "IP:127.0.0.1") -> tuple[Path, Path]:
    """Return a certificate and its key, as files; ``names`` are those of ``subjectAltName``."""
    return _made(folder, name, names)


def signed(folder: Path, name: str, authority: tuple[Path, Path]) -> tuple[Path, Path]:
    """Return a client's certificate and its key, as files; ``authority`` are those of the one that signs it."""
    certificate, key = map(str, authority)
    return _made(folder, name, f"DNS:{name}.example", "-CA", certificate, "-CAkey", key)


def _made(folder: Path, name: str, names: str, *more: str) -> tuple[Path, Path]:
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = [
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
        "-days", "2", *more,
        "-subj", f"/CN={name}", "-addext", f"subjectAltName={names}", "-keyout", str(key), "-out", str(certificate),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return certificate, key
