"""Writes constraints.txt: one version of everything that requirements-dev.txt installs, for each supported Python.

    python3 .ci/lock.py [OPTIONS OF uv pip compile]

Every version is the newest that fits. Unless uv is on the path, it is installed into an environment
that is thrown away.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OLDEST = "3.11"

HEAD = """\
# The tested versions of all that requirements-dev.txt needs, for Python 3.11 to 3.13.
# `python3 dev.py lock` writes this file: edit the requirements instead.
"""


def main(options: list[str]) -> int:
    """Write the file; returns uv's exit status, or 1 if it resolved nothing."""
    with tempfile.TemporaryDirectory() as folder:
        uv = shutil.which("uv") or installed_uv(Path(folder))
        # Without the old constraints, which requirements.txt names: they would be the result.
        requirements = Path(folder) / "requirements.txt"
        requirements.write_text(flattened(), encoding="utf-8")
        command = [uv, "pip", "compile", "--universal", "--python-version", OLDEST, "--quiet", "--no-header"]
        command += ["--no-annotate", "--no-emit-index-url", *options, str(requirements)]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        return done.returncode
    versions = locked(done.stdout)
    if not versions:
        # An option such as --help makes uv print something else, and succeed.
        print("lock: uv resolved no versions; constraints.txt is unchanged", file=sys.stderr)
        return 1
    (ROOT / "constraints.txt").write_text(HEAD + "\n".join(versions) + "\n", encoding="utf-8")
    return 0


def installed_uv(folder: Path) -> str:
    """Install uv below a folder and return its path."""
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    subprocess.run([folder / "venv" / "bin" / "pip", "install", "--quiet", "uv"], check=True)
    return str(folder / "venv" / "bin" / "uv")


def flattened() -> str:
    """Return the lines of both requirements files, without those that name a file, and with absolute paths."""
    lines = [
        line
        for name in ("requirements.txt", "requirements-dev.txt")
        for line in (ROOT / name).read_text().split("\n")
    ]
    kept = [line for line in lines if not line.startswith(("-c ", "-r "))]
    return "\n".join(re.sub(r"^-e \.", f"-e {ROOT}", line) for line in kept)


def locked(text: str) -> list[str]:
    """Return the lines of uv's answer that name a version: not those of this repository's own distributions."""
    return [line for line in text.splitlines() if "==" in line]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
