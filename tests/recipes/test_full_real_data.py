"""The long test: the recipe on real instructions, from the folder that MILEPOST_TEST_DATA names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from milepost.recipes import full
from milepost.recipes.config_files import parse_config
from milepost.storage.catalog import read_catalog
from tests.recipes.runs import Crash, at_update, crash, first_difference, logged


def configuration(folder: Path) -> str:
    data = Path(os.environ["MILEPOST_TEST_DATA"]) / "alpaca_en_1k.json"
    return yaml.safe_dump(
        {
            "output_dir": str(folder),
            "model": {
                "config": {
                    "model_type": "llama",
                    "hidden_size": 64,
                    "intermediate_size": 128,
                    "num_hidden_layers": 2,
                    "num_attention_heads": 4,
                    "attention_dropout": 0.1,
                }
            },
            "tokenizer": {"vocab_size": 2000, "max_seq_len": 192},
            "dataset": {"source": "json", "data_files": str(data)},
            "validation_dataset": {"split_from_train": 0.1},
            "batch_size": 4,
            "gradient_accumulation_steps": 4,
            "max_steps": 45,
            "optimizer": {"lr": 0.003},
            "lr_scheduler": {"name": "cosine", "num_warmup_steps": 5},
            "save_every_n_train_steps": 10,
            "validate_every_n_train_steps": 10,
            "keep_last_n_checkpoints": 2,
            "keep_best_n_checkpoints": 1,
        }
    )


def train(folder: Path) -> int:
    return full.main(parse_config(configuration(folder), "alpaca.yaml"), "alpaca.yaml")


@pytest.mark.long
def test_alpaca_is_learned_and_every_kept_folder_opens(tmp_path):
    assert train(tmp_path / "unbroken") == 0
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Crash):
        at_update(patch, 27, crash)
        train(tmp_path / "run")
    assert train(tmp_path / "run") == 0
    assert first_difference(tmp_path / "run" / "step_45", tmp_path / "unbroken" / "step_45") is None
    assert logged(tmp_path / "run") == logged(tmp_path / "unbroken")
    losses = [line["loss"] for line in logged(tmp_path / "run")]
    assert sum(losses[-5:]) < 0.95 * sum(losses[:5])

    kept = read_catalog(tmp_path / "run").checkpoints
    assert [checkpoint.step for checkpoint in kept][-2:] == [40, 45]
    for checkpoint in kept:
        model = AutoModelForCausalLM.from_pretrained(checkpoint.path)
        tokenizer = AutoTokenizer.from_pretrained(checkpoint.path)
        asked = tokenizer("Describe a process", return_tensors="pt")
        assert model(**asked).logits.shape[-1] == len(tokenizer) == 2000
