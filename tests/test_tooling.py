"""The files that tell other tools what to do: they can be read, and name what is there."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
GITHUB = ROOT / ".github"
DEV = runpy.run_path(str(ROOT / "dev.py"))
TEMPLATES = sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml"))
LOCK = (ROOT / "constraints.txt").read_text(encoding="utf-8")
LOCKED = {re.split("==", line)[0] for line in LOCK.splitlines() if "==" in line}
REQUIREMENTS = ("requirements.txt", "requirements-dev.txt")


def read_yaml(path: Path) -> Any:
    """What a file in YAML says."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_the_workflow_runs_every_supported_python() -> None:
    """Each in a job of its own, through .ci/run."""
    [job] = read_yaml(GITHUB / "workflows" / "ci.yml")["jobs"].values()
    *_, last = job["steps"]

    assert job["strategy"]["matrix"]["python"] == [f"{major}.{minor}" for major, minor in DEV["PYTHONS"]]
    assert last["run"] == ".ci/run" and os.access(ROOT / last["run"], os.X_OK)
    assert last["env"]["KINMQTT_CI_PYTHON"] == "${{ matrix.python }}"
    assert "KINMQTT_CI_PYTHON" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", TEMPLATES, ids=[path.stem for path in TEMPLATES])
def test_an_issue_template_asks_something(path: Path) -> None:
    """It has a name, a description, and fields with labels that are asked once."""
    form = read_yaml(path)
    fields = [field for field in form["body"] if field["type"] != "markdown"]

    assert form["name"] and form["description"]
    assert any(field.get("validations", {}).get("required") for field in fields)
    assert len({field["id"] for field in fields}) == len(fields)
    assert len({field["attributes"]["label"] for field in fields}) == len(fields)


def test_there_are_templates_for_bugs_features_and_pull_requests() -> None:
    """The last one names commands that dev.py has."""
    text = (GITHUB / "pull_request_template.md").read_text(encoding="utf-8")

    assert [path.stem for path in TEMPLATES] == ["bug", "feature"]
    assert set(re.findall(r"dev\.py (\w+)", text)) <= set(DEV["COMMANDS"])


def test_pre_commit_runs_the_checks() -> None:
    """The very list of `dev.py check`, with the tools of .venv."""
    [local] = read_yaml(ROOT / ".pre-commit-config.yaml")["repos"]
    hooks = local["hooks"]

    assert tuple(tuple(hook["entry"].split()[2:]) for hook in hooks) == DEV["CHECKS"]
    assert all(hook["entry"].startswith(".venv/bin/python -m ") and hook["language"] == "system" for hook in hooks)


def test_everything_that_is_asked_for_is_locked() -> None:
    """constraints.txt has one version or several, each for other Pythons, of each requirement."""
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in REQUIREMENTS]
    names = re.findall(r"^([a-z][\w.-]*)", "\n".join(texts), re.MULTILINE)
    for path in [*ROOT.glob("*/pyproject.toml"), *ROOT.glob("plugins/*/pyproject.toml")]:
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        needs = sum(project.get("optional-dependencies", {}).values(), project.get("dependencies", []))
        names += [re.split(r"[^\w.-]", need)[0] for need in needs]
    wanted = {re.sub(r"[-_.]+", "-", name).lower() for name in names}

    assert {name for name in wanted if not name.startswith("kinmqtt")} - LOCKED == set()
    assert "pyspark" in LOCKED


def test_the_lock_names_versions_and_nothing_else() -> None:
    """No registry, no path and no distribution of this repository; each name once, or with markers."""
    lines = [line for line in LOCK.splitlines() if not line.startswith("#")]

    assert [line for line in lines if not re.fullmatch(r"[a-z0-9-]+==[\w.]+( ; .+)?", line)] == []
    assert [name for name in LOCKED if name.startswith("kinmqtt")] == []
    for name in LOCKED:
        of_it = [line for line in lines if line.startswith(f"{name}==")]
        assert len(of_it) == 1 or all(" ; " in line for line in of_it)


def test_the_requirements_take_the_locked_versions() -> None:
    """The first file names the constraints, the second one the first."""
    first, second = ((ROOT / name).read_text(encoding="utf-8").splitlines() for name in REQUIREMENTS)

    assert "-c constraints.txt" in first
    assert "-r requirements.txt" in second


@pytest.mark.parametrize(("name", "shell"), [("run", "bash"), ("apt-install", "sh")])
def test_scripts_can_be_read(name: str, shell: str) -> None:
    """The shell takes them, and they may be started."""
    path = ROOT / ".ci" / name

    done = subprocess.run([shell, "-n", path], capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")
    assert os.access(path, os.X_OK)


def test_continuous_integration_runs_the_test_command_of_the_readme() -> None:
    """`dev.py test` as it stands there, without arguments."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")

    assert re.search(r"^python3 dev\.py test +#", readme, re.MULTILINE)
    assert re.search(r'"\$oldest_python" dev\.py test$', script, re.MULTILINE)
