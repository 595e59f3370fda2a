"""Instruction data: rows of a few known forms become token ids, and labels that teach the answer alone.

Each form is one function in ``FORMS`` that turns a row into an ``Example``: a question, the same question as plain
text, and the answer. A tokenizer with a chat template renders a user turn and an assistant turn with it. Without one,
the text is the plain question, the answer, and the tokenizer's end token. Plain questions of the form ``alpaca`` are
worded as Stanford's Alpaca did (``ALPACA``, ``ALPACA_INPUT``); those of ``prompt_completion`` are the prompt as it is.
Rows of the form ``text`` have no question: they never go through a chat template, and all of their text is taught.

Tokenizers are those of transformers, or anything that behaves like one: ``tokenizer(texts, add_special_tokens=False)``
with ``input_ids`` in what it returns, ``apply_chat_template``, ``chat_template``, ``eos_token_id``, ``bos_token_id``.
"""

from __future__ import annotations

import difflib
import itertools
import logging
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from milepost.data.tokenized import IGNORED, TokenizedDataset
from milepost.errors import ConfigError

logger = logging.getLogger("milepost")

ALPACA: Final = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Response:\n"
)
ALPACA_INPUT: Final = (
    "Below is an instruction that describes a task, paired with an input that provides further context. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n"
)

_ROWS_AT_ONCE: Final = 1000


class Row:
    """One row of a source, read field by field; knows where it stands, so that an error can say so.

    ``number`` counts the rows of the source from 1. ``columns`` maps a field to the name it has in the row.
    """

    def __init__(self, values: Mapping[str, Any], columns: Mapping[str, str], source: str, number: int) -> None:
        self._values = values
        self._columns = columns
        self._place = f"{source}, row {number} (counted from 1)"
        if not isinstance(values, Mapping):
            raise ConfigError(f"{self._place}: is a {type(values).__name__}, not a mapping of fields to texts")

    def text(self, field: str) -> str:
        """The field's text. Raises ConfigError naming source, row, field and the fields there are."""
        column = self._columns.get(field, field)
        if column not in self._values:
            raise self._error(field, "is missing")
        value = self._values[column]
        if not isinstance(value, str):
            raise self._error(field, f"must be text and is {value!r} ({type(value).__name__})")
        return value

    def text_or_empty(self, field: str) -> str:
        """Like ``text``, for a field that may be missing or None."""
        return "" if self._values.get(self._columns.get(field, field)) is None else self.text(field)

    def _error(self, field: str, fault: str) -> ConfigError:
        column = self._columns.get(field, field)
        name = f'"{column}"' if column == field else f'"{column}" (for {field})'
        there = ", ".join(f'"{key}"' for key in self._values) or "none"
        return ConfigError(f"{self._place}: the field {name} {fault}. Fields of this row: {there}.", key=field)


@dataclass(frozen=True, slots=True)
class Example:
    """What one row teaches: ``question`` for a chat template, ``plain`` for a tokenizer without one, and ``answer``.

    ``question`` is None where there is none to ask: the answer is then plain text.
    """

    question: str | None
    plain: str
    answer: str


@dataclass(frozen=True, slots=True)
class Form:
    """A shape that rows have: the fields it reads, and the function that reads them."""

    fields: tuple[str, ...]
    read: Callable[[Row], Example]


def _alpaca(row: Row) -> Example:
    instruction, given, answer = row.text("instruction"), row.text_or_empty("input"), row.text("output")
    if not given:
        return Example(instruction, ALPACA.format(instruction=instruction), answer)
    return Example(f"{instruction}\n\n{given}", ALPACA_INPUT.format(instruction=instruction, input=given), answer)


def _prompt_completion(row: Row) -> Example:
    prompt = row.text("prompt")
    return Example(prompt, prompt, row.text("completion"))


def _text(row: Row) -> Example:
    return Example(None, "", row.text("text"))


FORMS: Final[Mapping[str, Form]] = MappingProxyType(
    {
        "alpaca": Form(("instruction", "input", "output"), _alpaca),
        "prompt_completion": Form(("prompt", "completion"), _prompt_completion),
        "text": Form(("text",), _text),
    }
)


def tokenize_rows(
    rows: Iterable[Mapping[str, Any]],
    tokenizer: Any,
    *,
    form: str = "alpaca",
    columns: Mapping[str, str] | None = None,
    train_on_prompt: bool = False,
    max_length: int | None = None,
    source: str = "the data set",
) -> TokenizedDataset:
    """Tokenize rows of one form into a dataset of ``{"input_ids", "labels"}``.

    ``columns`` names the column of a field where it is called otherwise, as in ``{"instruction": "question"}``. Labels
    are the ids of the answer with its end token, and -100 for the question, unless ``train_on_prompt``. Rows are cut
    after ``max_length`` tokens; one with nothing of its answer left is dropped, counted in ``.dropped``, and logged.
    ``source`` is what errors call the rows, such as the file's path.

    Raises ConfigError for a setting that cannot work, no rows, none left, or a row that does not have the form.
    """
    renamed = _checked_columns(form, columns or {})
    if max_length is not None and max_length < 2:
        raise ConfigError(f"max_length is {max_length}; it must be at least 2", key="max_length", value=max_length)
    encode = _Encoder(tokenizer, source)
    examples = (FORMS[form].read(Row(row, renamed, source, number)) for number, row in enumerate(rows, 1))
    # Flat from the start: lists of ints would take ten times the memory while a large source is read.
    ids, labels, lengths = array("i"), array("i"), array("q")
    read = 0
    for batch in iter(lambda: list(itertools.islice(examples, _ROWS_AT_ONCE)), []):
        read += len(batch)
        for tokens, answer_at in encode(batch):
            tokens = tokens[:max_length]
            # Token 0 has nothing before it that could predict it.
            if len(tokens) > max(answer_at, 1):
                ids.extend(tokens)
                labels.extend(tokens if train_on_prompt else [IGNORED] * answer_at + tokens[answer_at:])
                lengths.append(len(tokens))
    _check_kept(read, len(lengths), max_length, source)
    return TokenizedDataset(ids, labels, lengths, dropped=read - len(lengths))


class _Encoder:
    """Renders and tokenizes examples, many at once, and finds the token at which each answer begins."""

    def __init__(self, tokenizer: Any, source: str) -> None:
        self._tokenizer = tokenizer
        self._source = source
        self._chat = bool(getattr(tokenizer, "chat_template", None))
        self._end = getattr(tokenizer, "eos_token_id", None)
        self._start = self._special_start()

    def __call__(self, examples: Sequence[Example]) -> Iterator[tuple[list[int], int]]:
        chats = [self._chat and example.question is not None for example in examples]
        texts = [self._rendered(e) if chat else (e.plain, e.answer) for e, chat in zip(examples, chats, strict=True)]
        wholes = self._ids([prompt + answer for prompt, answer in texts])
        prompts = self._ids([prompt for prompt, _ in texts])
        for chat, (_, answer), whole, prompt in zip(chats, texts, wholes, prompts, strict=True):
            # Where the two merge into a token across the border, they are kept apart: the answer must follow the
            # tokens that a question has when the model is asked.
            tokens = whole if whole[: len(prompt)] == prompt else prompt + self._ids([answer])[0]
            if chat:
                yield tokens, len(prompt)
            else:
                yield [*self._start, *tokens, self._end_token()], len(self._start) + len(prompt) if prompt else 0

    def _rendered(self, example: Example) -> tuple[str, str]:
        question = [{"role": "user", "content": example.question}]
        whole = self._template([*question, {"role": "assistant", "content": example.answer}], False)
        # Some templates begin an answer that is to be written otherwise than one that is given.
        for prompted in (True, False):
            prompt = self._template(question, prompted)
            if whole.startswith(prompt):
                return prompt, whole[len(prompt) :]
        raise ConfigError(
            f"{self._source}: the tokenizer's chat template does not begin a question with its answer as it begins the "
            "question alone, so the answer cannot be told apart; use a tokenizer with another chat template",
            key="tokenizer",
        )

    def _template(self, messages: list[dict[str, Any]], prompted: bool) -> str:
        rendered = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompted)
        return str(rendered)

    def _ids(self, texts: list[str]) -> list[list[int]]:
        return [list(ids) for ids in self._tokenizer(texts, add_special_tokens=False)["input_ids"]]

    def _end_token(self) -> int:
        if self._end is None:
            raise ConfigError("the tokenizer has no end token (eos_token), so answers could not end", key="tokenizer")
        return int(self._end)

    def _special_start(self) -> list[int]:
        start = getattr(self._tokenizer, "bos_token_id", None)
        if start is None:
            return []
        # Whether texts begin with it is the tokenizer's to say.
        return [int(start)] if list(self._tokenizer([""])["input_ids"][0])[:1] == [start] else []


def _check_kept(read: int, kept: int, max_length: int | None, source: str) -> None:
    if not read:
        raise ConfigError(f"{source} has no rows", key="dataset")
    why = "their answers are empty" if max_length is None else f"nothing of their answers is within {max_length} tokens"
    if not kept:
        raise ConfigError(f"{source}: none of its {read} rows can be used: {why}", key="max_length", value=max_length)
    if kept < read:
        logger.warning("%s: dropped %d of %d rows: %s", source, read - kept, read, why)


def _checked_columns(form: str, columns: Mapping[str, str]) -> Mapping[str, str]:
    if form not in FORMS:
        raise ConfigError(f"form is {form!r}{_nearest(form, FORMS)}", key="form", value=form)
    fields = FORMS[form].fields
    for field in columns:
        if field not in fields:
            raise ConfigError(
                f"columns names the field {field!r}, which the form {form} does not have{_nearest(field, fields)}",
                key="columns",
                value=field,
            )
    return columns


def _nearest(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(known)}"
