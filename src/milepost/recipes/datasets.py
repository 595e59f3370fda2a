"""Rows for training and for validation: files and data sets of the Hub through ``datasets``, or the embedded tasks."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import datasets

from milepost.data import TokenizedDataset, generate_tasks, global_order, split_tasks, tokenize_rows
from milepost.data.instruct import FORMS, Example, Row
from milepost.errors import ConfigError
from milepost.recipes.config import DatasetConfig, RecipeConfig, SplitConfig
from milepost.recipes.huggingface import first_line

EMBEDDED_TASKS = 1600


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of one form; ``name`` is what messages call them, ``settings`` says how a row reads."""

    rows: Sequence[Mapping[str, Any]]
    settings: DatasetConfig
    name: str

    def __len__(self) -> int:
        return len(self.rows)

    def examples(self) -> Iterator[Example]:
        """What each row teaches. Raises ConfigError naming the row that has not the fields it needs."""
        form = FORMS[self.settings.form]
        for number, row in enumerate(self.rows, 1):
            yield form.read(Row(row, self.settings.columns, self.name, number))

    def texts(self) -> Iterator[str]:
        """The rows' text, to train a tokenizer on."""
        for example in self.examples():
            if example.question is not None:
                yield example.question
            yield example.answer

    def tokenized(self, tokenizer: Any, max_length: int | None) -> TokenizedDataset:
        """Token ids and labels of the rows."""
        return tokenize_rows(
            self.rows,
            tokenizer,
            form=self.settings.form,
            columns=self.settings.columns,
            train_on_prompt=self.settings.train_on_prompt,
            max_length=max_length,
            source=self.name,
        )


def load_tables(config: RecipeConfig) -> tuple[Table, Table | None]:
    """The training rows, and those for validation if there are any; every row has been looked at.

    Raises ConfigError naming the file, row and field of what cannot be used.
    """
    train = load_table(config.dataset, "dataset")
    if config.validation_dataset is None:
        return train, None
    if isinstance(config.validation_dataset, SplitConfig):
        return split_table(train, config.validation_dataset.split_from_train)
    return train, load_table(config.validation_dataset, "validation_dataset")


def load_table(settings: DatasetConfig, key: str) -> Table:
    """All rows of one source, checked; ``key`` is the setting's name for messages. Raises ConfigError."""
    if settings.source == "embedded":
        rows: Any = generate_tasks(EMBEDDED_TASKS)
        table = Table(rows[: settings.limit], settings, "the embedded tasks")
    else:
        table = Table(_load(settings, key), settings, _name(settings))
    if not len(table):
        raise ConfigError(f"{key}: {table.name} has no rows, and nothing can be learned from none.", key=key)
    for _ in table.examples():
        pass
    return table


def split_table(table: Table, wanted: float | int) -> tuple[Table, Table]:
    """Training and validation rows: ``wanted`` is the share or number of the latter. The rule knows only the count.

    Raises ConfigError if one side would be empty.
    """
    count = wanted if isinstance(wanted, int) else max(1, round(wanted * len(table)))
    if count >= len(table):
        raise ConfigError(
            f"validation_dataset.split_from_train: {wanted} takes {count} of {len(table)} rows of {table.name}, and "
            "none would be left to train on.",
            key="validation_dataset.split_from_train",
            value=wanted,
        )
    if table.settings.source == "embedded":
        # Apart by question, since different tasks may ask the same.
        train, held = split_tasks(table.rows, count)  # type: ignore[arg-type]
        return replace(table, rows=train), replace(table, rows=held)
    chosen = set(global_order(len(table), 0, 0)[:count].tolist())
    sides: list[list[int]] = [[], []]
    for index in range(len(table)):
        sides[index in chosen].append(index)
    return tuple(replace(table, rows=_selected(table.rows, side)) for side in sides)  # type: ignore[return-value]


def _load(settings: DatasetConfig, key: str) -> Any:
    files = [settings.data_files] if isinstance(settings.data_files, str) else settings.data_files
    if files is not None:
        files = [_readable(name, key) for name in files]
        if not any(_has_bytes(name) for name in files):
            return []
    try:
        loaded = datasets.load_dataset(settings.source, settings.subset, data_files=files, split=settings.split)
    except Exception as error:
        if "corresponds to no data" in str(error):
            return []
        told = first_line(error if error.__cause__ is None else error.__cause__)
        raise ConfigError(
            f"{key}: {_name(settings)} cannot be read as {settings.source} ({told}). "
            + ("Look at the file." if files else "Name a data set of the Hub, or a source with data_files."),
            key=key,
            value=settings.source,
        ) from error
    return loaded if settings.limit is None else loaded.select(range(min(settings.limit, len(loaded))))


def _readable(name: str, key: str) -> str:
    if "://" in name:
        return name
    path = Path(name).expanduser()
    if glob.has_magic(name) and not path.exists():
        return str(path)
    try:
        with path.open("rb"):
            return str(path)
    except OSError as error:
        raise ConfigError(
            f"{key}.data_files: {path} cannot be read: {error.strerror}. Name a file that exists and may be read.",
            key=f"{key}.data_files",
            value=name,
        ) from error


def _has_bytes(name: str) -> bool:
    path = Path(name)
    return not path.is_file() or path.stat().st_size > 0


def _name(settings: DatasetConfig) -> str:
    if settings.data_files is None:
        return settings.source
    return settings.data_files if isinstance(settings.data_files, str) else ", ".join(settings.data_files)


def _selected(rows: Any, indices: list[int]) -> Any:
    return rows.select(indices) if isinstance(rows, datasets.Dataset) else [rows[index] for index in indices]
