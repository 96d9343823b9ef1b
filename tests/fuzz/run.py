"""Coverage-guided fuzzing with atheris: ``python tests/fuzz/run.py TARGET RUNS``.

TARGET is ``codec-3``, ``codec-4``, ``codec-5``, ``machine-3``, ``machine-4`` or ``machine-5``. The inputs that
reached something new are kept in ``tests/fuzz/corpus/TARGET.txt``, one in hexadecimal on a line; every test run sends
them again.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PATHS = ("tests/harness", "core/tests/harness", "spi/tests/harness")
LONGEST_BYTES = 600


def main(name: str, runs: int) -> int:
    """Fuzz in a process of its own, then take in what it found."""
    kept = HERE / "corpus" / f"{name}.txt"
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus"
        corpus.mkdir()
        for number, data in enumerate(_seeds(kept)):
            (corpus / f"seed-{number}").write_bytes(data)
        command = [sys.executable, __file__, "--child", name]
        limits = [f"-runs={runs}", f"-max_len={LONGEST_BYTES}", "-timeout=20", f"-artifact_prefix={folder}/"]
        status = subprocess.call([*command, *limits, str(corpus)])
        found = sorted(path.read_bytes() for path in corpus.iterdir())
        for crash in Path(folder).glob("crash-*"):
            found.append(crash.read_bytes())
            print(f"crashed by {crash.read_bytes().hex()}")
    kept.write_text("".join(f"{data.hex()}\n" for data in found), encoding="ascii")
    print(f"{name}: {len(found)} inputs kept")
    return status


def _seeds(kept: Path) -> list[bytes]:
    if kept.exists():
        return [bytes.fromhex(line) for line in kept.read_text(encoding="ascii").split()]
    sys.path[:0] = [str(ROOT / path) for path in PATHS]
    from core_harness.corpus import ENTRIES

    return [b"\x01\xff" + entry.data for entry in ENTRIES.values()]


def child(name: str, arguments: list[str]) -> None:
    """Run the fuzzer itself."""
    import atheris

    sys.path[:0] = [str(ROOT / path) for path in PATHS]
    with atheris.instrument_imports(include=["kinmqtt"]):
        from root_harness.fuzz_targets import targets
    atheris.Setup([sys.argv[0], *arguments], targets()[name])
    atheris.Fuzz()


if __name__ == "__main__":
    if sys.argv[1] == "--child":
        child(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(main(sys.argv[1], int(sys.argv[2])))
