"""The loop of the README, as a whole program."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from transformers import AutoModelForCausalLM

from milepost.storage.catalog import read_catalog
from tests.recipes.runs import first_difference, saved_steps


def example(name: str) -> ModuleType:
    path = Path(__file__).parents[2] / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_loop_of_ones_own_goes_on_bit_for_bit(tmp_path, monkeypatch, capsys):
    program = example("train_loop")
    monkeypatch.setattr(program, "TOTAL_STEPS", 150)
    program.main(str(tmp_path / "unbroken"))

    calls = []
    loss_of = program.loss_of

    def dies(model, batch):
        calls.append(1)
        if len(calls) == 120:
            raise KeyboardInterrupt
        return loss_of(model, batch)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(program, "loss_of", dies)
        program.main(str(tmp_path / "run"))
    program.main(str(tmp_path / "run"))
    assert "going on after step 100" in capsys.readouterr().out
    assert saved_steps(tmp_path / "run") == [100, 150]
    assert first_difference(tmp_path / "run" / "step_150", tmp_path / "unbroken" / "step_150") is None
    newest = read_catalog(tmp_path / "run").newest
    assert newest is not None
    AutoModelForCausalLM.from_pretrained(newest.path)
