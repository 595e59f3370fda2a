"""What a step computes: accumulation, answers only, dtypes, activation checkpointing, pretrained models."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from milepost.data import PaddingCollator
from milepost.recipes.losses import accumulate_gradients, label_tokens, summed_loss, validation_loss
from milepost.storage.catalog import read_catalog
from tests.recipes.runs import logged, run, run_until_crash, saved_steps, settings

CPU = torch.device("cpu")


def tiny(dtype: torch.dtype = torch.float32, **fields):
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    config = AutoConfig.for_model("llama", num_attention_heads=2, **sizes, **fields)
    return AutoModelForCausalLM.from_config(config, dtype=dtype)


def made_rows(count: int):
    """Rows of different lengths, of which different shares are labels."""
    rows = []
    for number in range(count):
        ids = [(number * 7 + place * 3) % 50 for place in range(4 + number)]
        rows.append({"input_ids": ids, "labels": [-100] * (1 + number // 2) + ids[1 + number // 2 :]})
    return rows


@pytest.mark.parametrize("sizes", [[1] * 8, [2, 2, 2, 2], [3, 5], [7, 1]])
def test_accumulated_gradients_and_loss_are_those_of_the_unsplit_batch(sizes):
    collate, rows = PaddingCollator(0), made_rows(8)
    whole, split = tiny(), tiny()
    summed, tokens = accumulate_gradients(whole, [collate(rows)], CPU)
    rest = iter(rows)
    window = [collate([next(rest) for _ in range(size)]) for size in sizes]
    summed_split, tokens_split = accumulate_gradients(split, window, CPU)
    assert tokens == tokens_split
    assert summed_split.item() == pytest.approx(summed.item(), rel=1e-5)
    for name, parameter in whole.named_parameters():
        torch.testing.assert_close(split.get_parameter(name).grad, parameter.grad, rtol=1e-4, atol=1e-6)


def test_the_loss_is_the_mean_over_the_labels_of_the_answer_alone():
    batch = PaddingCollator(0)(made_rows(3))
    model = tiny()
    reference = model(**batch).loss.item()
    assert summed_loss(model, batch).item() / label_tokens(batch) == pytest.approx(reference, rel=1e-5)


def test_validation_weighs_tokens_whatever_the_batches_and_draws_nothing():
    collate, rows = PaddingCollator(0), made_rows(6)
    model = tiny(attention_dropout=0.5).train()
    before = torch.get_rng_state()
    whole = validation_loss(model, [collate(rows)], CPU)
    split = validation_loss(model, [collate(rows[:1]), collate(rows[1:])], CPU)
    assert split == pytest.approx(whole, rel=1e-5)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training


def test_a_window_without_any_label_changes_nothing():
    model = tiny()
    batch = PaddingCollator(0)([{"input_ids": [1, 2, 3], "labels": [-100, -100, -100]}])
    summed, tokens = accumulate_gradients(model, [batch], CPU)
    assert (summed.item(), tokens) == (0.0, 0)
    assert all(not parameter.grad.any() for parameter in model.parameters())


def test_activation_checkpointing_gives_the_same_losses_also_with_dropout(tmp_path):
    for name, wanted in (("plain", False), ("recomputed", True)):
        run(tmp_path / name, enable_activation_checkpointing=wanted)
    losses = [[line["loss"] for line in logged(tmp_path / name)] for name in ("plain", "recomputed")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@pytest.mark.parametrize("name", ["AdamW", "SGD", "Adafactor", "RMSprop"])
def test_optimizers_by_name_go_on_bit_for_bit(tmp_path, name):
    run(tmp_path / "unbroken", optimizer={"name": name, "lr": 0.01})
    run_until_crash(tmp_path / "run", 6, optimizer={"name": name, "lr": 0.01})
    run(tmp_path / "run", optimizer={"name": name, "lr": 0.01})
    assert logged(tmp_path / "run") == logged(tmp_path / "unbroken")


def test_bf16_trains_goes_on_bit_for_bit_and_opens_as_bf16(tmp_path):
    run(tmp_path / "unbroken", dtype="bf16", deterministic=True)
    run_until_crash(tmp_path / "run", 6, dtype="bf16", deterministic=True)
    run(tmp_path / "run", dtype="bf16", deterministic=True)
    assert logged(tmp_path / "run") == logged(tmp_path / "unbroken")
    assert logged(tmp_path / "run")[-1]["loss"] < logged(tmp_path / "run")[0]["loss"]
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "step_12").dtype is torch.bfloat16
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_pretrained_model_and_its_tokenizer_come_from_one_folder(tmp_path):
    """A checkpoint is such a folder: another run begins with its weights, at step 0, with an optimizer of its own."""
    run(tmp_path / "first")
    values = settings(tmp_path / "second")
    del values["tokenizer"]
    changes = {"model": {"path": str(tmp_path / "first" / "step_12")}, "tokenizer": {}}
    assert run(tmp_path / "second", **changes, max_steps=4) == 0
    assert saved_steps(tmp_path / "second") == [4]
    assert logged(tmp_path / "second")[0]["loss"] < logged(tmp_path / "first")[0]["loss"]
    run_until_crash(tmp_path / "third", 4, **changes, save_every_n_train_steps=2, max_steps=4)
    run(tmp_path / "third", **changes, save_every_n_train_steps=2, max_steps=4)
    assert [line["loss"] for line in logged(tmp_path / "third")] == [
        line["loss"] for line in logged(tmp_path / "second")
    ]


def test_workers_change_nothing(tmp_path):
    for workers in (0, 2):
        run(tmp_path / str(workers), num_workers=workers, max_steps=6, lr_scheduler__name="constant")
    assert logged(tmp_path / "0") == logged(tmp_path / "2")


def test_the_embedded_tasks_are_learned_from_a_split_of_their_own(tmp_path):
    changes = {"dataset": {"source": "embedded", "limit": 200}, "validation_dataset": {"split_from_train": 0.1}}
    run(
        tmp_path / "run",
        max_steps=30,
        batch_size=8,
        save_every_n_train_steps=15,
        validate_every_n_train_steps=15,
        **changes,
    )
    scores = [c.metrics["val_loss"] for c in read_catalog(tmp_path / "run").checkpoints]
    assert scores[1] < scores[0]
