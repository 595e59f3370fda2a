"""The house itself: what starts without torch, what names say, and that every case has its test."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
SAYING_NOTHING = {"util", "utils", "helper", "helpers", "common", "core", "misc"}
CASES = [*range(1, 18), *range(20, 23), *range(24, 27), 28, 29, *range(30, 35)]


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


def test_names_of_files_say_something():
    assert [path for path in SOURCES if SAYING_NOTHING & set(path.stem.split("_"))] == []


def test_no_public_name_is_shortened_to_ckpt():
    defined = re.compile(r"(?:def|class)\s+(\w*ckpt\w*)", re.IGNORECASE)
    assert [(path, found) for path in SOURCES for found in defined.findall(path.read_text())] == []


def test_nothing_is_pickled():
    forbidden = re.compile(
        r"^\s*(?:import|from)\s+(?:pickle|dill|cloudpickle|shelve|marshal)\b|torch\.(?:load|save)\(", re.M
    )
    assert [path for path in SOURCES if forbidden.search(path.read_text())] == []


def test_every_case_has_a_test_of_its_name():
    names = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    named = {
        int(number)
        for found in re.findall(r"def test_case_([0-9_and]+)", names)
        for number in re.findall(r"\d\d", found)
    }
    assert [case for case in CASES if case not in named] == []
