"""Names on disk: what is spelled is parsed, and nothing else is."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from milepost.storage import layout
from milepost.storage.backend import LocalBackend
from milepost.storage.layout import RunFolder, is_reserved, is_safe_name, parse_step, shard_names, step_name
from milepost.storage.run import open_run
from milepost.storage.sweep import prune
from tests.storage.samples import assert_whole, save, steps, tree


@pytest.mark.parametrize(
    ("name", "step"), [("step_0", 0), ("step_7", 7), ("step_10", 10), ("step_123456789", 123456789)]
)
def test_a_step_is_spelled_and_parsed(name: str, step: int) -> None:
    assert step_name(step) == name
    assert parse_step(name) == step


NOT_STEPS = (
    "step_4_backup step_04 step_00 step_-1 step_+1 step_1.0 step_1e3 step_ step 4 Step_4 STEP_4 xstep_4 step_4x "
    "epoch_1 step_٤ step_² step_1_000 step_4.staging-0123abcd step_4.pruned-0123abcd step_4~ .step_4"
)


@pytest.mark.parametrize("name", [*NOT_STEPS.split(), "step_4\n", " step_4", "step_4 ", "step_4/", "step_4\0", ""])
def test_case_34_other_names_are_not_steps(name: str) -> None:
    assert parse_step(name) is None


def test_case_34_other_names_are_left_alone(tmp_path: Path) -> None:
    for name in ("step_4_backup", "step_04", "epoch_1"):
        save(tmp_path, 4)
        (tmp_path / "step_4").rename(tmp_path / name)
    (tmp_path / "step_7").write_text("a file")
    before = tree(tmp_path)
    run, lock = open_run(tmp_path, LocalBackend())
    for step in (2, 4):
        save(tmp_path, step)
    prune(run, LocalBackend(), [])
    lock.release()
    assert steps(tmp_path) == [2, 4]
    after = tree(tmp_path)
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize(
    "folder", ["footsteps/epoch_9/base", "with space/und Übung/数据", "step_3", "a/step_4.staging-0123abcd"]
)
def test_case_32_a_run_may_lie_anywhere(tmp_path: Path, folder: str) -> None:
    run, lock = open_run(tmp_path / folder, LocalBackend())
    save(run.path, 2)
    save(run.path, 4)
    lock.release()
    run, lock = open_run(tmp_path / folder, LocalBackend())
    assert steps(run.path) == [2, 4]
    assert_whole(run.path, 4)
    lock.release()


@pytest.mark.parametrize("name", ["a", "a.b", "a/b/c.txt", "...", "..a", "a..", ".hidden", "ü", "a b", "~", "-x"])
def test_names_inside_the_checkpoint_are_safe(name: str) -> None:
    assert is_safe_name(name)


UNSAFE = [
    "",
    ".",
    "..",
    "../a",
    "a/../b",
    "a/..",
    "./a",
    "a/.",
    "/a",
    "//a",
    "a//b",
    "a/",
    "/",
    "a\\b",
    "..\\a",
    "a\0b",
    "a\nb",
    "\x1f",
]


@pytest.mark.parametrize("name", [*UNSAFE, None, 3, b"a", ["a"]])
def test_names_that_may_lead_outside_are_not_safe(name: object) -> None:
    assert not is_safe_name(name)


@pytest.mark.parametrize(
    ("name", "reserved"),
    [
        ("milepost.json", True),
        ("milepost.json.0123abcd", True),
        ("model.safetensors", True),
        ("model-00001-of-00002.safetensors", True),
        ("model.safetensors.index.json", True),
        ("training_state", True),
        ("training_state/x", True),
        ("milepost.json.bak", False),
        ("config.json", False),
        ("model_card.md", False),
        ("adapter_model.safetensors", False),
        ("sub/milepost.json", False),
        ("training_state.md", False),
    ],
)
def test_a_checkpoints_own_names_are_reserved(name: str, reserved: bool) -> None:
    assert is_reserved(name) is reserved


@pytest.mark.parametrize("count", [1, 2, 99_999])
def test_shards_are_told_from_other_files(count: int) -> None:
    names = shard_names(layout.WEIGHTS, count)
    assert len(set(names)) == count
    assert all(layout.is_weights_file(name) and not layout.is_state_tensors_file(name) for name in names)
    assert all(layout.is_state_tensors_file(name) for name in shard_names(layout.STATE_TENSORS, count))


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "x/model.safetensors", "model-1-of-2.safetensors"])
def test_other_safetensors_files_are_no_shards(name: str) -> None:
    assert not layout.is_weights_file(name) and not layout.is_state_tensors_file(name)


def test_names_with_an_id_are_fresh_and_recognised() -> None:
    staging = {layout.staging_name(4) for _ in range(50)}
    assert len(staging) == 50 and all(map(layout.is_staging, staging))
    assert layout.is_manifest_draft(layout.manifest_draft_name())
    aside = layout.aside_name("step_4", "replaced")
    assert layout.parse_replaced(aside) == "step_4" and layout.is_aside(aside)
    assert layout.parse_replaced(layout.aside_name("step_4", "pruned")) is None
    assert not layout.is_aside(layout.aside_name("step_4", "displaced"))
    assert all(parse_step(name) is None for name in (*staging, aside))


@pytest.mark.parametrize(
    "name", ["step_4.staging-", "step_4.staging-0123ABCD", "step_4.staging-0123abcd5", "step_04.staging-0123abcd"]
)
def test_other_names_are_not_staging(name: str) -> None:
    assert not layout.is_staging(name)


def test_ids_do_not_disturb_a_training_runs_generators() -> None:
    before = random.getstate()
    layout.new_id()
    assert random.getstate() == before


def test_a_runs_own_places_are_inside_it(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert {place.relative_to(tmp_path).parts[0] for place in (run.control, run.lock, run.trash, run.superseded)} == {
        ".milepost",
        ".trash",
        ".superseded",
    }
    assert run.checkpoint(4) == tmp_path / "step_4"
