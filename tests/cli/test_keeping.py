"""The verbs that keep, prune, explain and bring back: what they print, what they do, and their exit status."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from milepost.cli.app import app
from milepost.records import Snapshot, TensorBytes
from milepost.storage.catalog import read_catalog
from milepost.storage.commit import Draft, commit
from milepost.storage.layout import RunFolder
from milepost.storage.run import open_run
from tests.faults import UnsyncedBackend

RULES = "checkpoint: {keep: [{last: 2}, {best: 1, metric: val_loss, level: weights}], trash_grace: 2h}\n"
WEIGHTS = TensorBytes("F32", (64,), memoryview(bytearray(256)))
MOMENTS = TensorBytes("F32", (2048,), memoryview(bytearray(8192)))


def make(folder: Path, scores: dict[int, float | None], config: str | None = RULES, **options: Any) -> Path:
    """A run of these steps, in this order, with their scores."""
    opened, lock = open_run(folder, UnsyncedBackend())
    for serial, (step, score) in enumerate(scores.items(), start=1):
        state = Snapshot({"a.weight": WEIGHTS, "b.weight": WEIGHTS}, {}, {"counters": {}}, {"m": MOMENTS})
        draft = Draft(
            step,
            serial,
            "one",
            state,
            assets={} if config is None else {"run.yaml": config.encode()},
            metrics={} if score is None else {"val_loss": score},
            reasons=("every 2 steps",),
            config=None if config is None else "run.yaml",
        )
        commit(opened, UnsyncedBackend(), draft, max_shard_size=options.get("max_shard_size", 10**9))
    lock.release()
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make(tmp_path / "a run", {2: 0.5, 4: 0.1, 6: 0.4, 8: 0.6})


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def said(*arguments: object, code: int = 0) -> Any:
    result = call(*arguments, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout, parse_constant=pytest.fail)


def steps(folder: Path) -> dict[int, str]:
    return {each.step: each.level.value for each in read_catalog(folder).checkpoints}


def test_prune_says_what_it_would_do_and_changes_nothing(run):
    before = sorted(path.name for path in run.rglob("*"))
    result = call("prune", run)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "rules: last=2; best=1,metric=val_loss,level=weights"
    assert lines[1].split() == ["step", "what", "level", "frees", "because"]
    assert lines[2].split(maxsplit=5)[:3] == ["2", "prune", "full"] and "no rule keeps it" in lines[2]
    assert lines[3].split()[:4] == ["4", "demote", "→", "weights"] and "best val_loss (0.1)" in lines[3]
    assert "1 to prune and 1 to demote of 4, which frees" in result.stdout
    assert "nothing was changed, --apply does it" in result.stdout.replace("\n", " ")
    assert "stays in the trash for 2 h" in result.stdout
    assert max(map(len, lines)) <= 80
    assert sorted(path.name for path in run.rglob("*")) == before


def test_prune_does_it_when_told_to_and_undelete_takes_it_back(run):
    found = said("prune", run, "--apply")
    assert [(each["step"], each["what"], each["level_then"]) for each in found["checkpoints"]] == [
        (2, "prune", None),
        (4, "demote", "weights"),
        (6, "keep", "full"),
        (8, "keep", "full"),
    ]
    assert found["applied"] and found["frees"] == sum(each["frees"] for each in found["checkpoints"]) > 8192
    assert steps(run) == {4: "weights", 6: "full", 8: "full"}
    listed = call("ls", run).stdout
    assert "in the trash: " in listed and "step_2" in listed and "weights" in listed
    assert [entry["step"] for entry in said("ls", run)["trash"]] == [2]
    gone = call("why", run, 2)
    assert gone.exit_code == 1
    assert "step_2 is in the trash" in gone.stdout and "no rule keeps it" in gone.stdout
    back = call("undelete", run)
    assert back.exit_code == 0 and "It is pinned." in back.stdout
    assert steps(run) == {2: "full", 4: "weights", 6: "full", 8: "full"}
    assert said("prune", run, "--apply")["frees"] == 0
    assert [event["what"] for event in said("log", run)] == ["pruned", "demoted", "undeleted"]
    log = call("log", run, 2).stdout.splitlines()
    assert len(log) == 3 and "pruned" in log[1] and "undeleted" in log[2]


def test_without_a_grace_it_is_gone_and_the_reason_stays_known(run):
    assert call("prune", run, "--keep", "last=1", "--apply", "--trash-grace", "0").exit_code == 0
    result = call("undelete", run, 4)
    assert result.exit_code == 1 and "trash_grace" in result.stderr
    found = said("why", run, 4, code=1)
    assert not found["there"]
    assert [event["what"] for event in found["history"]] == ["pruned", "swept"]


@pytest.mark.parametrize(
    "options",
    [
        ("--keep", "last=2", "--keep", "best=1,metric=val_loss"),
        ("--keep-last", "2", "--keep-best", "1:val_loss"),
    ],
)
def test_case_08_best_and_newest_are_kept_by_the_command_line(run, options):
    assert call("prune", run, *options, "--apply").exit_code == 0
    assert steps(run) == {4: "full", 6: "full", 8: "full"}


def test_case_13_the_best_is_the_best_whatever_was_saved_since(tmp_path):
    run = make(tmp_path, {2: 0.9, 4: 0.5, 6: None})
    assert call("prune", run, "--keep", "best=1,metric=val_loss,mode=max", "--apply").exit_code == 0
    assert steps(run) == {2: "full", 6: "full"}


@pytest.mark.parametrize(
    ("scores", "mode", "left"),
    [
        ((math.nan, 0.4, math.nan, 0.6), "min", [2, 4]),
        ((math.nan, 0.4, math.nan, 0.6), "max", [4]),
        ((math.nan, math.nan, math.nan, None), "min", [3, 4]),
        ((math.inf, 0.0, -1.0, None), "min", [3, 4]),
        ((-math.inf, 0.0, 0.0, None), "max", [2, 4]),
    ],
)
def test_case_14_what_is_no_number_is_never_the_best(tmp_path, scores, mode, left):
    run = make(tmp_path, dict(enumerate(scores, start=1)))
    assert call("prune", run, "--keep", f"best=1,metric=val_loss,mode={mode}", "--apply").exit_code == 0
    assert list(steps(run)) == left


def test_case_15_a_save_without_a_score_is_a_plain_one(tmp_path):
    run = make(tmp_path, {1: None, 2: 0.5, 3: None, 4: 0.4, 5: None})
    assert call("prune", run, "--keep", "last=1", "--keep", "best=1,metric=val_loss", "--apply").exit_code == 0
    assert list(steps(run)) == [4, 5]


def test_case_34_names_that_are_not_quite_a_checkpoints_are_left_alone(run):
    for name in ("step_4_backup", "step_04", "epoch_1"):
        shutil.copytree(run / "step_4", run / name)
    (run / "step_7").write_text("a file")
    assert call("prune", run, "--keep", "last=1", "--apply", "--trash-grace", "0").exit_code == 0
    left = {name for name in os.listdir(run) if not name.startswith(".")}
    assert left == {"step_8", "step_4_backup", "step_04", "epoch_1", "step_7", "latest"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--keep", "last=0"), "n must be a whole number of at least 1"),
        (("--keep", "lats=2"), "there are last, best"),
        (("--keep", "last"), "must be like last=2"),
        (("--keep", "last=2,last=3"), "must be like last=2"),
        (("--keep", "best=1"), "metric"),
        (("--keep", "last=2,level=half"), "level must be one of 'full', 'weights'"),
        (("--keep", "last=2,mode=min"), "has no setting 'mode'"),
        (("--keep", "within=soon"), "not a length of time"),
        (("--keep-best", "val_loss"), "must be like 2:val_loss"),
        (("--trash-grace", "long", "--keep", "last=1"), "not a length of time"),
    ],
)
def test_wrong_rules_end_with_2_and_change_nothing(run, options, text):
    result = call("prune", run, "--apply", *options)
    assert result.exit_code == 2 and text in result.stderr, result.stderr
    assert len(steps(run)) == 4


def test_an_empty_policy_is_refused(tmp_path):
    run = make(tmp_path / "plain", {1: 0.5, 2: 0.4}, config=None)
    for folder in (run, make(tmp_path / "without rules", {1: 0.5}, config="seed: 1\n")):
        result = call("prune", folder, "--apply")
        assert result.exit_code == 2 and "Name rules: --keep last=3" in result.stderr
    assert len(steps(run)) == 2


def test_every_rule_can_be_said_on_the_command_line(run):
    texts = ["last=1", "every=4", "log_spaced=2,factor=2", "within=1h,level=weights", "disk_budget=80%"]
    found = said("prune", run, *(part for text in texts for part in ("--keep", text)))
    assert found["rules"] == [
        "last=1",
        "every=4",
        "log_spaced=2,factor=2",
        "within=1h,level=weights",
        "disk_budget=80%",
    ]
    assert {each["step"]: each["what"] for each in found["checkpoints"]} == {
        2: "keep",
        4: "keep",
        6: "demote",
        8: "keep",
    }


def test_why_says_why_it_was_saved_and_why_it_stays(run):
    text = call("why", run, 4).stdout
    for words in (
        "saved because  every 2 steps",
        "kept because   best val_loss (0.1), weights",
        "rules          last=2",
    ):
        assert words in text
    assert "will be pruned no rule keeps it" in call("why", run, 2).stdout
    assert said("why", run)["kept_because"] == ["newest", "last 2"]
    assert said("why", run, 2, "--keep", "every=2")["kept_because"] == ["every 2 steps"]


def test_why_without_known_rules_says_so(tmp_path):
    run = make(tmp_path, {1: 0.5, 2: 0.4}, config=None)
    assert "the run's rules are not known" in call("why", run, 1).stdout
    assert "kept because   newest" in call("why", run, 2).stdout


def test_why_of_what_never_was_and_of_what_is_damaged(run):
    assert "no checkpoint of step 3" in call("why", run, 3).stdout
    (run / "step_4" / "milepost.json").write_text("{")
    result = call("why", run, 4)
    assert result.exit_code == 1 and "step_4 is damaged" in result.stdout


def test_pin_and_unpin(run):
    assert call("pin", run, 2).stdout == "step_2 is pinned.\n"
    assert call("pin", run, 2).stdout == "step_2 is already pinned.\n"
    assert call("prune", run, "--keep", "last=1", "--apply").exit_code == 0
    assert steps(run) == {2: "full", 8: "full"}
    assert said("unpin", run, 2) == {"step": 2, "path": str(run / "step_2"), "pinned": False, "changed": True}
    assert said("pin", run)["step"] == 8
    assert [event["what"] for event in said("log", run, 2)] == ["pinned", "unpinned"]


def test_demote_gives_the_training_state_back_and_refuses_what_must_stay(run):
    result = call("demote", run, 4)
    assert result.exit_code == 0 and "holds weights only" in result.stdout
    assert steps(run)[4] == "weights" and call("verify", run).exit_code == 0
    assert said("demote", run, 4)["frees"] == 0
    assert call("pin", run, 2).exit_code == 0
    for step, words in ((8, "newest"), (2, "pinned. Unpin it first")):
        refused = call("demote", run, step)
        assert refused.exit_code == 2 and words in refused.stderr
    assert steps(run) == {2: "full", 4: "weights", 6: "full", 8: "full"}


@pytest.mark.parametrize("verb", ["pin", "unpin", "demote", "undelete"])
def test_a_step_that_is_not_there_ends_with_1(run, verb):
    result = call(verb, run, 3)
    assert result.exit_code == 1 and "step 3" in result.stderr


def test_an_undeletion_into_a_name_that_is_taken_is_refused(run):
    call("prune", run, "--apply")
    (run / "step_2").mkdir()
    result = call("undelete", run, 2, "--no-pin")
    assert result.exit_code == 1 and "Move it away first" in result.stderr
    (run / "step_2").rmdir()
    assert said("undelete", run, 2, "--no-pin")["pinned"] is False


def test_log_of_nothing_says_so(run):
    assert "nothing has become of any checkpoint" in call("log", run).stdout
    assert said("log", run) == []


@pytest.mark.parametrize("harm", ["damaged", "absent"])
def test_a_damaged_index_is_rebuilt_from_the_shards(tmp_path, harm):
    run = make(tmp_path, {2: 0.5}, max_shard_size=300)
    index = run / "step_2" / "model.safetensors.index.json"
    good = index.read_bytes()
    index.write_text("{") if harm == "damaged" else index.unlink()
    assert call("verify", run).exit_code == 1
    result = call("verify", run, "--repair-index")
    assert result.exit_code == 0 and "rebuilt from the shards" in result.stdout
    assert json.loads(index.read_bytes()) == json.loads(good)
    assert said("verify", run, 2, "--repair-index") == [
        {"path": str(run / "step_2"), "problems": [], "repaired": False}
    ]
    assert sorted(os.listdir(run / "step_2")) == [
        "milepost.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        index.name,
        "run.yaml",
        "training_state",
    ]


def test_an_index_is_not_rebuilt_from_damaged_shards(tmp_path):
    run = make(tmp_path, {2: 0.5}, max_shard_size=300)
    shard = run / "step_2" / "model-00001-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"\1")
    (run / "step_2" / "model.safetensors.index.json").unlink()
    result = call("verify", run, "--repair-index")
    assert result.exit_code == 1
    assert "index.json is missing" in result.stdout and "differs from its digest" in result.stdout


def test_two_hundred_checkpoints_are_readable_on_80_columns(tmp_path):
    run = make(tmp_path, {step: 1 / step for step in range(5, 1005, 5)})
    for verb in ("ls", "prune"):
        lines = call(verb, run).stdout.splitlines()
        assert len(lines) > 200 and max(len(line) for line in lines if str(run) not in line) <= 80
    call("prune", run, "--apply")
    lines = call("ls", run).stdout.splitlines()
    assert len(lines) < 12 and all(len(line) <= 80 for line in lines if str(run) not in line)
    assert "the last 8 of 198" in call("ls", run).stdout.replace("\n", " ")


def test_pruning_beside_a_live_run_leaves_its_unfinished_save(run):
    opened, lock = open_run(run, UnsyncedBackend())
    (run / "step_10.staging-0123abcd").mkdir()
    assert call("prune", run, "--keep", "last=1", "--apply").exit_code == 0
    assert (run / "step_10.staging-0123abcd").is_dir() and steps(run) == {8: "full"}
    lock.release()
    assert call("pin", run, 8).exit_code == 0
    assert not (run / "step_10.staging-0123abcd").exists()
    assert opened == RunFolder(run)


@pytest.mark.parametrize("verb", ["why", "prune", "pin", "unpin", "undelete", "demote", "log"])
def test_help_has_an_example_and_the_exit_statuses(verb):
    result = call(verb, "--help")
    assert result.exit_code == 0
    assert "Example: milepost" in result.stdout and "Exit status: 0" in result.stdout


@pytest.mark.parametrize("verb", ["why", "prune", "pin", "unpin", "undelete", "log"])
def test_a_folder_that_is_not_there_is_an_error_without_a_traceback(tmp_path, verb):
    result = call(verb, tmp_path / "nowhere")
    assert result.exit_code == 1 and result.stderr.startswith("error: there is no run folder")
    assert not (tmp_path / "nowhere").exists()
