"""Data flows one way: registry ← datasets ← benchmark ← methods, slurm, leaderboard ← programs."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOUNDATION = {"errors", "hparams", "registry", "seeds"}
PROGRAMS = {"sweep", "run", "list", "arguments", "bench", "explain"}
"""Files and folders of `benchmark` that people call."""


def imports(path: Path) -> set[str]:
    """Modules of this project that a file imports, at any depth."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module}
    packages = ("benchmark", "methods", "datasets", "leaderboard", "slurm")
    return {name for name in found if name.split(".")[0] in packages}


def files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("path", files("datasets"), ids=str)
def test_datasets_know_nothing_of_learning(path):
    allowed = {f"benchmark.{name}" for name in FOUNDATION}
    assert {n for n in imports(path) if not n.startswith("datasets")} <= allowed


@pytest.mark.parametrize("path", files("benchmark"), ids=str)
def test_the_law_knows_neither_methods_nor_board_nor_cluster(path):
    if path.stem not in PROGRAMS and path.parent.name not in PROGRAMS:
        assert not {
            n for n in imports(path) if n.split(".")[0] in ("methods", "leaderboard", "slurm")
        }


@pytest.mark.parametrize("path", files("leaderboard"), ids=str)
def test_the_board_never_imports_the_loop(path):
    if path.match("submissions/rerun.py"):  # `verify --rerun` repeats runs, and nothing else does
        return
    loop = {"benchmark.federation", "benchmark.execute", "benchmark.launch", "benchmark.method"}
    assert not imports(path) & loop
    assert not {n for n in imports(path) if n.split(".")[0] in ("methods", "slurm")}


@pytest.mark.parametrize("path", files("methods"), ids=str)
def test_methods_import_no_board_and_no_cluster(path):
    assert not {n for n in imports(path) if n.split(".")[0] in ("leaderboard", "slurm")}


def test_reading_results_needs_no_torch():
    import subprocess
    import sys

    code = "import sys, leaderboard.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
