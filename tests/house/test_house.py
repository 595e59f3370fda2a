"""The house itself: what starts without torch, what names say, and that every case has its test."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
SAYING_NOTHING = {"util", "utils", "helper", "helpers", "common", "core", "misc"}
PICKLING = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
RUNNING = {"torch.load", "torch.save", "eval", "exec", "yaml.load", "yaml.unsafe_load", "yaml.full_load"}
CASES = [*range(1, 18), *range(20, 23), *range(24, 35)]


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


@pytest.mark.parametrize(
    "code",
    [
        "import milepost",
        "from milepost import EverySteps, KeepLast, Moment",
        "import milepost.storage.reader, milepost.storage.commit, milepost.storage.run",
        "import milepost.recipes.config_files",
        "import milepost.cli.app",
        "from typer.testing import CliRunner; from milepost.cli.app import app; "
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0",
        "from typer.testing import CliRunner; from milepost.cli.app import app; "
        "assert CliRunner().invoke(app, ['configs']).exit_code == 0",
        "from typer.testing import CliRunner; from milepost.cli.app import app; "
        "assert CliRunner().invoke(app, ['ls', 'src']).exit_code == 0",
        "from typer.testing import CliRunner; from milepost.cli.app import app; "
        "assert CliRunner().invoke(app, ['prune', 'src', '--keep', 'last=1']).exit_code == 0; "
        "assert CliRunner().invoke(app, ['log', 'src']).exit_code == 0",
        "from typer.testing import CliRunner; from milepost.cli.app import app; "
        "assert CliRunner().invoke(app, ['save-now', 'src']).exit_code == 1",
        "import milepost.comparing, milepost.storage.pieces",
    ],
)
def test_it_starts_without_torch(code):
    check = f"{code}\nimport sys\nassert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True, cwd=ROOT)


def test_every_public_name_is_there():
    import milepost

    for name in milepost.__all__:
        assert getattr(milepost, name) is not None
    with pytest.raises(AttributeError):
        milepost.nothing_of_the_kind  # noqa: B018


def names_defined(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def keys(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        yield from map(str, value)
        for inner in value.values():
            yield from keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys(inner)


def dangers(tree: ast.AST) -> Iterator[str]:
    """Every way in which reading a file could run what the file says."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] in PICKLING)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PICKLING:
            yield f"from {node.module}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in RUNNING:
            yield ast.unparse(node.func)
        elif isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "trust_remote_code"):
            yield node.arg


def test_imports_go_down_through_the_rooms_only():
    check = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    done = subprocess.run(check, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_names_of_files_and_folders_say_something():
    words = {path: set(re.split(r"[_/.]", path.relative_to(ROOT).as_posix())) for path in SOURCES}
    assert [path for path, parts in words.items() if SAYING_NOTHING & parts] == []


def test_no_name_or_key_is_shortened_to_ckpt():
    names = [(path.name, name) for path in SOURCES for name in [path.stem, *names_defined(parsed(path))]]
    for path in (ROOT / "src").rglob("*.yaml"):
        names += [(path.name, key) for key in keys(yaml.safe_load(path.read_text()))]
    assert [found for found in names if "ckpt" in found[1].lower()] == []


def test_nothing_is_pickled_and_nothing_that_was_read_is_run():
    # An export for others to load: a dict of plain tensors, which `weights_only=True` reads.
    allowed = [("exporting.py", "torch.save")]
    assert [(path.name, found) for path in SOURCES for found in dangers(parsed(path))] == allowed


@pytest.mark.parametrize(
    "code",
    [
        "import os, pickle",
        "def f():\n    from pickle import loads",
        "torch.load(path)",
        "np.load(path, allow_pickle=True)",
        "AutoModel.from_pretrained(path, trust_remote_code=True)",
        "eval(text)",
        "yaml.load(text, Loader)",
    ],
)
def test_what_could_run_a_files_content_is_recognised(code):
    assert [*dangers(ast.parse(code))] != []


def test_every_case_has_a_test_of_its_name():
    names = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    named = {
        int(number)
        for found in re.findall(r"^\s*def test_case_(\d\d(?:_and_\d\d)*)_[a-z]", names, re.MULTILINE)
        for number in found.split("_and_")
    }
    assert [case for case in CASES if case not in named] == []
