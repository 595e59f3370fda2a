"""Tokenized rows in flat arrays, and batches of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from milepost.data import PaddingCollator, ResumableLoader, TokenizedDataset
from milepost.errors import ConfigError

ROWS = TokenizedDataset([5, 6, 7, 8, 9, 5], [-100, 6, 7, -100, 9, 5], [3, 1, 2], dropped=4)


def test_rows_come_back_with_their_types() -> None:
    assert [row["input_ids"].tolist() for row in ROWS] == [[5, 6, 7], [8], [9, 5]]
    assert [row["labels"].tolist() for row in ROWS] == [[-100, 6, 7], [-100], [9, 5]]
    assert {array.dtype for row in ROWS for array in row.values()} == {np.dtype(np.int32)}
    assert (len(ROWS), ROWS.dropped, ROWS.lengths.tolist()) == (3, 4, [3, 1, 2])
    assert ROWS[-1]["input_ids"].tolist() == [9, 5]


@pytest.mark.parametrize("index", [3, -4])
def test_there_are_no_rows_beyond_the_last(index: int) -> None:
    with pytest.raises(IndexError):
        ROWS[index]


def test_rows_cannot_be_changed_by_those_who_read_them() -> None:
    with pytest.raises(ValueError, match="read-only"):
        ROWS[0]["labels"][0] = 1


@pytest.mark.parametrize(
    ("ids", "labels", "lengths"),
    [
        ([5, 6, 7, 8, 9, 6], [-100, 6, 7, -100, 9, 5], [3, 1, 2]),
        ([5, 6, 7, 8, 9, 5], [5, 6, 7, -100, 9, 5], [3, 1, 2]),
        ([5, 6, 7, 8, 9, 5], [-100, 6, 7, -100, 9, 5], [2, 2, 2]),
    ],
)
def test_the_fingerprint_tells_any_change(ids: list[int], labels: list[int], lengths: list[int]) -> None:
    same = TokenizedDataset([5, 6, 7, 8, 9, 5], [-100, 6, 7, -100, 9, 5], [3, 1, 2])
    assert same.fingerprint == ROWS.fingerprint == "cd90b2e683d473e7c30abff8c5231e11"
    assert TokenizedDataset(ids, labels, lengths).fingerprint != ROWS.fingerprint


def test_lengths_must_add_up() -> None:
    with pytest.raises(ValueError, match=r"3 tokens.*2 ids and 3 labels"):
        TokenizedDataset([1, 2], [1, 2, 3], [1, 2])


def test_batches_are_padded_on_the_right() -> None:
    batch = PaddingCollator(0)([ROWS[0], ROWS[1], ROWS[2]])
    assert {name: tensor.tolist() for name, tensor in batch.items()} == {
        "input_ids": [[5, 6, 7], [8, 0, 0], [9, 5, 0]],
        "attention_mask": [[1, 1, 1], [1, 0, 0], [1, 1, 0]],
        "labels": [[-100, 6, 7], [-100, -100, -100], [9, 5, -100]],
    }
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}


@pytest.mark.parametrize(("multiple", "length"), [(None, 3), (1, 3), (2, 4), (3, 3), (8, 8)])
def test_lengths_are_rounded_up_to_the_multiple(multiple: int | None, length: int) -> None:
    batch = PaddingCollator(0, pad_to_multiple_of=multiple)([ROWS[0], ROWS[1]])
    assert {tuple(tensor.shape) for tensor in batch.values()} == {(2, length)}


def test_padding_is_not_taught() -> None:
    logits = torch.randn(2, 3, 10, generator=torch.Generator().manual_seed(0))
    together = PaddingCollator(0)([ROWS[0], ROWS[2]])["labels"]
    alone = [ROWS[0]["labels"].tolist(), ROWS[2]["labels"].tolist()]
    one_by_one = [cross_entropy(logits[i, : len(x)], torch.tensor(x), reduction="sum") for i, x in enumerate(alone)]
    loss = cross_entropy(logits.flatten(0, 1), together.flatten(), reduction="sum")
    torch.testing.assert_close(loss, sum(one_by_one))


class Tokens:
    def __init__(self, pad_token_id: int | None, eos_token_id: int | None) -> None:
        self.pad_token_id = pad_token_id
        self.eos_token_id = eos_token_id


def test_the_padding_token_is_the_tokenizers_or_its_end_token() -> None:
    assert PaddingCollator.for_tokenizer(Tokens(0, 2)).pad_token_id == 0
    assert PaddingCollator.for_tokenizer(Tokens(None, 2), pad_to_multiple_of=8) == PaddingCollator(2, 8)
    with pytest.raises(ConfigError, match="padding token"):
        PaddingCollator.for_tokenizer(Tokens(None, None))


def test_a_multiple_must_be_positive() -> None:
    with pytest.raises(ValueError, match="pad_to_multiple_of=0"):
        PaddingCollator(0, 0)


def test_the_loader_tells_which_rows_a_batch_holds() -> None:
    loader = ResumableLoader(ROWS, 2, collate_fn=PaddingCollator(0), isolate_rng=False)
    assert loader.sample_ids.tolist() == []
    for batch in loader:
        firsts = [int(ROWS[index]["input_ids"][0]) for index in loader.sample_ids.tolist()]
        assert batch["input_ids"][:, 0].tolist() == firsts
