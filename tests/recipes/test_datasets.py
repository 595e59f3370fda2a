"""Rows from every kind of source, and the rows held out for validation."""

from __future__ import annotations

import json

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from milepost.errors import ConfigError
from milepost.recipes.config import DatasetConfig
from milepost.recipes.datasets import load_table, split_table
from milepost.recipes.huggingface import quiet_libraries
from milepost.recipes.tokenizers import train_tokenizer

ROWS = [{"instruction": f"Say {n}.", "input": "", "output": str(n)} for n in range(10)]


def write(path, kind):
    if kind == "json":
        path.write_text(json.dumps(ROWS))
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    elif kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    elif kind == "csv":
        path.write_text("instruction,input,output\n" + "".join(f"Say {n}.,,{n} times\n" for n in range(10)))
    return str(path)


@pytest.fixture(autouse=True)
def quiet():
    with quiet_libraries():
        yield


@pytest.mark.parametrize("kind", ["json", "jsonl", "parquet", "csv"])
def test_files_of_every_kind(tmp_path, kind):
    source = "json" if kind == "jsonl" else kind
    table = load_table(DatasetConfig(source=source, data_files=write(tmp_path / f"rows.{kind}", kind)), "dataset")
    assert len(table) == 10
    assert [example.question for example in table.examples()] == [f"Say {n}." for n in range(10)]


def test_plain_text_is_one_row_a_line_and_limited(tmp_path):
    (tmp_path / "text.txt").write_text("one\ntwo\nthree\n")
    settings = DatasetConfig(source="text", data_files=str(tmp_path / "text.txt"), form="text", limit=2)
    assert list(load_table(settings, "dataset").texts()) == ["one", "two"]


def test_several_files_and_renamed_columns(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text('{"question": "q", "reply": "r"}\n')
    settings = DatasetConfig(
        source="json",
        data_files=[str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")],
        form="prompt_completion",
        columns={"prompt": "question", "completion": "reply"},
    )
    assert list(load_table(settings, "dataset").texts()) == ["q", "r", "q", "r"]


@pytest.mark.parametrize(("wanted", "count"), [(3, 3), (0.2, 2), (0.01, 1)])
def test_rows_held_out_are_in_one_side_only_and_always_the_same(tmp_path, wanted, count):
    table = load_table(DatasetConfig(source="json", data_files=write(tmp_path / "rows.json", "json")), "dataset")
    train, held = split_table(table, wanted)
    assert len(held) == count
    sides = [{row["output"] for row in side.rows} for side in (train, held)]
    assert sides[0] | sides[1] == {str(n) for n in range(10)} and not sides[0] & sides[1]
    assert [row["output"] for row in split_table(table, wanted)[1].rows] == [row["output"] for row in held.rows]


def test_the_embedded_tasks_share_no_question_with_those_held_out():
    train, held = split_table(load_table(DatasetConfig(source="embedded"), "dataset"), 0.1)
    asked = [{(row["instruction"], row["input"]) for row in side.rows} for side in (train, held)]
    assert len(held) >= 100 and not asked[0] & asked[1]


def test_a_hub_data_set_that_cannot_be_had_is_one_paragraph(monkeypatch):
    def fail(*arguments, **options):
        raise datasets.exceptions.DatasetNotFoundError("Dataset 'no/such' doesn't exist on the Hub\nor so")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(ConfigError, match=r"^dataset: no/such cannot be read as no/such \(Dataset 'no/such' .*\)\."):
        load_table(DatasetConfig(source="no/such"), "dataset")


def test_a_trained_tokenizer_is_a_function_of_the_texts_and_knows_every_byte():
    texts = [f"{n} green bottles, ünïcödé" for n in range(50)]
    first, second = (train_tokenizer(iter(texts), 300) for _ in range(2))
    assert first.backend_tokenizer.to_str() == second.backend_tokenizer.to_str()
    assert len(first) <= 300
    strange = "\x00\t\r\n 中文 🙂 \udc80".encode(errors="replace").decode()
    assert first.decode(first(strange).input_ids) == strange


def test_a_trained_tokenizer_renders_turns_and_leaves_room_for_an_answer():
    tokenizer = train_tokenizer(["hello"], 270)
    turns = [{"role": "user", "content": "hello"}]
    asked = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    told = tokenizer.apply_chat_template([*turns, {"role": "assistant", "content": "hi"}], tokenize=False)
    assert asked == "<|user|>hello<|end|><|assistant|>"
    assert told == asked + "hi<|end|>"
    assert len(tokenizer("<|user|><|end|>").input_ids) == 2
    assert (tokenizer.pad_token, tokenizer.eos_token) == ("<|pad|>", "<|end|>")
