"""The package as a whole: what it declares, what it pins and what importing it costs."""

import ast
import os
import re
import runpy
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
import setuptools
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import engine

ROOT = Path(__file__).parents[1]


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments of `setup()` in setup.py."""
    arguments: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", lambda **given: arguments.update(given))
    runpy.run_path(str(ROOT / "setup.py"))
    return arguments


def requirements(declared: dict[str, Any], *extras: str) -> list[Requirement]:
    groups = [declared["install_requires"], *map(declared["extras_require"].get, extras)]
    return [Requirement(line) for group in groups for line in group]


def pins() -> list[Requirement]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def pinned_versions() -> dict[str, str]:
    return {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in pins()}


def imported_modules(folder: Path) -> set[str]:
    """Top-level names of all absolute imports in a folder, also those inside functions."""
    found: set[str] = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return found


def run_python(code: str) -> str:
    # Without bytecode files the compiler would be measured, not the import.
    env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, cwd=ROOT, env=env, check=True, capture_output=True, text=True
    ).stdout


def test_the_version_is_the_same_in_the_package_and_in_its_metadata(declared):
    assert engine.__version__ == declared["version"]


def test_every_package_folder_is_installed(declared):
    folders = {path.parent.relative_to(ROOT) for path in ROOT.glob("engine/**/__init__.py")}
    assert {".".join(folder.parts) for folder in folders} == set(declared["packages"])


def test_every_imported_package_is_declared(declared):
    names = {canonicalize_name(r.name) for r in requirements(declared, *declared["extras_require"])}
    owners = packages_distributions()
    third_party = (
        (imported_modules(ROOT / "engine") | imported_modules(ROOT / "tools"))
        - set(sys.stdlib_module_names)
        - {"engine", *(path.stem for path in (ROOT / "tools").glob("*.py"))}
    )
    undeclared = {
        module
        for module in third_party
        if names.isdisjoint(map(canonicalize_name, owners.get(module, [module])))
    }
    assert undeclared == set()


def test_torch_is_pinned_exactly():
    assert pinned_versions()["torch"] == "2.13.0"


def test_every_pin_names_one_exact_version():
    wrong = [str(pin) for pin in pins() if not re.fullmatch(r"==[\w.]+", str(pin.specifier))]
    assert wrong == []
    assert len(pins()) == len(pinned_versions())


@pytest.mark.parametrize("extra", ["digits", "export", "dev", "docs"])
def test_the_tested_versions_lie_within_the_declared_ranges(declared, extra):
    tested = pinned_versions()
    outside = [
        str(requirement)
        for requirement in requirements(declared, extra)
        if not requirement.specifier.contains(tested[canonicalize_name(requirement.name)])
    ]
    assert outside == []


def test_importing_the_engine_leaves_heavy_packages_alone():
    loaded = run_python("import engine, sys; print(*sys.modules)").split()
    heavy = {"tensorboard", "fvcore.nn", "sklearn", "omegaconf", "pandas", "matplotlib"}
    assert heavy.isdisjoint(loaded)


def test_importing_the_engine_is_cheap_beside_torch():
    code = """
from time import process_time
start = process_time()
import torch
middle = process_time()
import engine
print((process_time() - middle) / (middle - start))
"""
    assert any(float(run_python(code)) < 0.2 for _ in range(3))
