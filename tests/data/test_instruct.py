"""Rows of known forms become ids and labels; the answer alone is taught, and a bad row is named."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from milepost.data import FORMS, tokenize_rows
from milepost.data.instruct import ALPACA, ALPACA_INPUT
from milepost.errors import ConfigError
from tests.data.words import BOS, CHAT, EOS, letters, spelled

PAIR = {"prompt": "ab", "completion": "cd"}
TASK = {"instruction": "do", "input": "it", "output": "ok"}


def taught(rows: list[Any], tokenizer: Any = None, **options: Any) -> list[tuple[str, str]]:
    """Each row's ids and labels as text."""
    tokenizer = tokenizer or letters()
    dataset = tokenize_rows(rows, tokenizer, **options)
    return [
        (spelled(tokenizer, row["input_ids"].tolist()), spelled(tokenizer, row["labels"].tolist()))
        for row in (dataset[index] for index in range(len(dataset)))
    ]


@pytest.mark.parametrize(
    ("form", "row", "text", "labels"),
    [
        ("prompt_completion", PAIR, "<s><user>ab<assistant>cd</s>", "_____cd</s>"),
        ("alpaca", TASK, "<s><user>do\n\nit<assistant>ok</s>", "_" * 9 + "ok</s>"),
        ("alpaca", {**TASK, "input": ""}, "<s><user>do<assistant>ok</s>", "_____ok</s>"),
        ("alpaca", {**TASK, "input": None}, "<s><user>do<assistant>ok</s>", "_____ok</s>"),
        ("alpaca", {"instruction": "do", "output": "ok"}, "<s><user>do<assistant>ok</s>", "_____ok</s>"),
        ("alpaca", {**TASK, "output": "", "input": ""}, "<s><user>do<assistant></s>", "_____</s>"),
        ("text", {"text": "abc"}, "abc</s>", "abc</s>"),
    ],
)
def test_a_chat_template_renders_a_users_and_an_assistants_turn(
    form: str, row: dict[str, Any], text: str, labels: str
) -> None:
    assert taught([row], letters(chat=CHAT), form=form) == [(text, labels)]


@pytest.mark.parametrize(
    ("form", "row", "prompt", "answer"),
    [
        ("prompt_completion", PAIR, "ab", "cd</s>"),
        ("prompt_completion", {**PAIR, "prompt": ""}, "", "cd</s>"),
        ("alpaca", TASK, ALPACA_INPUT.format(instruction="do", input="it"), "ok</s>"),
        ("alpaca", {**TASK, "input": ""}, ALPACA.format(instruction="do"), "ok</s>"),
        ("alpaca", {**TASK, "input": "{x}"}, ALPACA_INPUT.format(instruction="do", input="{x}"), "ok</s>"),
        ("text", {"text": "abc"}, "", "abc</s>"),
    ],
)
def test_without_a_chat_template_the_text_is_plain(form: str, row: dict[str, Any], prompt: str, answer: str) -> None:
    assert taught([row], form=form) == [(prompt + answer, "_" * len(prompt) + answer)]


def test_plain_text_begins_as_the_tokenizer_begins_texts() -> None:
    assert taught([PAIR], letters(starts=True), form="prompt_completion") == [("<s>abcd</s>", "___cd</s>")]
    assert taught([{"text": "a"}], letters(starts=True), form="text") == [("<s>a</s>", "<s>a</s>")]
    # A template writes its own start.
    assert taught([PAIR], letters(starts=True, chat=CHAT), form="prompt_completion")[0][0].count("<s>") == 1


def test_ids_and_labels_are_those_written_by_hand() -> None:
    tokenizer = letters(starts=True)
    a, b, c = tokenizer.convert_tokens_to_ids(["a", "b", "c"])
    (row,) = tokenize_rows([{"prompt": "ab", "completion": "c"}], tokenizer, form="prompt_completion")
    assert row["input_ids"].tolist() == [BOS, a, b, c, EOS]
    assert row["labels"].tolist() == [-100, -100, -100, c, EOS]


def test_train_on_prompt_teaches_the_question_too() -> None:
    ((text, labels),) = taught([PAIR], letters(chat=CHAT), form="prompt_completion", train_on_prompt=True)
    assert labels == text == "<s><user>ab<assistant>cd</s>"


def test_an_answer_never_merges_with_its_question() -> None:
    tokenizer = letters()
    merged = tokenizer.convert_tokens_to_ids(":b")
    rows = [{"prompt": "a:", "completion": "bc"}, {"prompt": "a:b", "completion": "c"}]
    apart, inside = tokenize_rows(rows, tokenizer, form="prompt_completion")
    assert merged not in apart["input_ids"] and merged in inside["input_ids"]
    assert spelled(tokenizer, apart["labels"].tolist()) == "__bc</s>"
    assert spelled(tokenizer, inside["labels"].tolist()) == "__c</s>"


def test_a_template_that_begins_an_answer_to_be_written_otherwise_is_masked_up_to_the_question() -> None:
    chat = CHAT.replace("%}<assistant>{%", "%}<assistant><think>{%")
    assert taught([PAIR], letters(chat=chat), form="prompt_completion") == [
        ("<s><user>ab<assistant>cd</s>", "____<assistant>cd</s>")
    ]


def test_a_template_that_hides_where_the_answer_begins_is_refused() -> None:
    chat = "{{ messages | length }}{% for message in messages %}{{ message['content'] }}{% endfor %}"
    with pytest.raises(ConfigError, match="chat template"):
        taught([PAIR], letters(chat=chat), form="prompt_completion")


@pytest.mark.parametrize(
    ("max_length", "expected"),
    [
        (None, [("abcd</s>", "__cd</s>"), ("abcdefgh</s>", "______gh</s>")]),
        (8, [("abcd</s>", "__cd</s>"), ("abcdefgh", "______gh")]),
        (6, [("abcd</s>", "__cd</s>")]),
        (3, [("abc", "__c")]),
    ],
)
def test_rows_are_cut_at_max_length_and_those_without_an_answer_are_dropped_and_counted(
    max_length: int | None, expected: list[tuple[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    rows = [PAIR, {"prompt": "abcdef", "completion": "gh"}]
    dropped = 2 - len(expected)
    assert tokenize_rows(rows, letters(), form="prompt_completion", max_length=max_length).dropped == dropped
    caplog.clear()
    with caplog.at_level(logging.WARNING, "milepost"):
        assert taught(rows, form="prompt_completion", max_length=max_length, source="t.json") == expected
    said = f"t.json: dropped 1 of 2 rows: nothing of their answers is within {max_length} tokens"
    assert caplog.messages == [said] * dropped


def test_a_row_of_one_token_teaches_nothing_and_is_dropped() -> None:
    dataset = tokenize_rows([{"text": ""}, {"text": "a"}], letters(), form="text")
    assert (len(dataset), dataset.dropped) == (1, 1)


def test_columns_may_be_called_otherwise() -> None:
    row = {"question": "do", "context": "it", "answer": "ok", "instruction": 7}
    columns = {"instruction": "question", "input": "context", "output": "answer"}
    assert taught([row], letters(chat=CHAT), columns=columns) == taught([TASK], letters(chat=CHAT))


NEEDED = [(form, field) for form, known in FORMS.items() for field in known.fields if field != "input"]


@pytest.mark.parametrize(("form", "field"), NEEDED)
def test_a_row_without_a_needed_field_is_named_with_the_fields_it_has(form: str, field: str) -> None:
    good = {name: "a" for name in FORMS[form].fields}
    bad = {name: "a" for name in good if name != field} | {"other": "b"}
    with pytest.raises(ConfigError) as caught:
        taught([good, good, bad], form=form, source="data/train.json")
    message = str(caught.value)
    assert message.startswith(f'data/train.json, row 3 (counted from 1): the field "{field}" is missing.')
    assert all(f'"{name}"' in message.split("Fields of this row:")[1] for name in bad)


@pytest.mark.parametrize("value", [None, 3, 1.5, ["a"], {"a": "b"}, b"a"])
@pytest.mark.parametrize(("form", "field"), [*NEEDED, ("alpaca", "input")])
def test_a_field_that_is_no_text_is_named(form: str, field: str, value: object) -> None:
    row = {name: "a" for name in FORMS[form].fields} | {field: value}
    if (field, value) == ("input", None):
        assert len(taught([row])) == 1
        return
    with pytest.raises(ConfigError, match=rf'row 1 \(counted from 1\): the field "{field}" must be text and is '):
        taught([row], form=form)


def test_a_missing_renamed_field_is_called_by_both_names() -> None:
    with pytest.raises(ConfigError, match=r'"question" \(for instruction\) is missing'):
        taught([TASK], columns={"instruction": "question"})


def test_a_row_that_is_no_mapping_is_named() -> None:
    with pytest.raises(ConfigError, match=r"x.json, row 2 \(counted from 1\).*list"):
        taught([TASK, ["do", "ok"]], source="x.json")


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        ([], {"source": "empty.json"}, r"empty\.json has no rows"),
        ([TASK], {"form": "alpacca"}, "did you mean 'alpaca'"),
        ([TASK], {"form": "chat"}, "prompt_completion"),
        ([TASK], {"columns": {"instructions": "q"}}, "did you mean 'instruction'"),
        ([TASK], {"max_length": 1}, "max_length is 1"),
        ([TASK], {"max_length": 10, "source": "s"}, "s: none of its 1 rows.*within 10 tokens"),
    ],
)
def test_what_cannot_work_is_refused(rows: list[Any], options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        taught(rows, **options)


def test_plain_answers_need_an_end_token() -> None:
    with pytest.raises(ConfigError, match="eos_token"):
        taught([PAIR], letters(end=None), form="prompt_completion")


def test_many_rows_come_out_in_their_order() -> None:
    rows = [{"text": str(number)} for number in range(2500)]
    assert [text for text, _ in taught(rows, form="text")] == [f"{number}</s>" for number in range(2500)]
