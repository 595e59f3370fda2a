"""``load_weights``: verified, all or nothing, and of any folder that somebody names."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from milepost import load_weights
from milepost.errors import CheckpointNotFoundError, CorruptCheckpointError, IncompatibleStateError
from tests.manager.training import Run, damage, same


@pytest.fixture
def run(tmp_path):
    trained = Run()
    with trained.manager(tmp_path / "run") as manager:
        trained.train(manager, manager.resume(), 2)
    return trained


def test_weights_load_into_a_model(tmp_path, run):
    other = Run(seed=5)
    result = load_weights(str(tmp_path / "run" / "step_2"), other.model)
    assert (result.missing, result.unexpected) == ((), ())
    assert same(other.weights(), run.weights())


def test_a_link_that_is_named_is_followed(tmp_path, run):
    (tmp_path / "latest").symlink_to(tmp_path / "run" / "step_2")
    other = Run(seed=5)
    load_weights(tmp_path / "latest", other.model)
    assert same(other.weights(), run.weights())
    with Run().manager(tmp_path / "another") as manager:
        assert manager.resume(tmp_path / "latest") == 2
    (tmp_path / "run" / "best").symlink_to("step_2")
    with Run().manager(tmp_path / "run") as manager:
        assert manager.resume(tmp_path / "run" / "best") == 2


def test_damage_is_noticed_and_the_model_stays(tmp_path, run):
    damage(tmp_path / "run" / "step_2", "flipped bit")
    other = Run(seed=5)
    before = other.weights()
    with pytest.raises(CorruptCheckpointError, match="digest"):
        load_weights(tmp_path / "run" / "step_2", other.model)
    assert same(other.weights(), before)


@pytest.mark.parametrize("place", ["run", "nowhere", "run/step_3", "run/step_2/model.safetensors"])
def test_what_is_no_checkpoint_is_said_so(tmp_path, run, place):
    with pytest.raises(CheckpointNotFoundError, match="not a checkpoint"):
        load_weights(tmp_path / place, run.model)


def test_missing_and_unexpected_names_are_told_or_refused(tmp_path, run):
    other = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 1), nn.Linear(1, 1))
    with pytest.raises(IncompatibleStateError, match=r"3\.weight"):
        load_weights(tmp_path / "run" / "step_2", other)
    result = load_weights(tmp_path / "run" / "step_2", other, strict=False)
    assert result.missing == ("3.weight", "3.bias")
    assert torch.equal(other[0].weight, run.model[0].weight)
