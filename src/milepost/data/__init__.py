"""Data whose position can be saved, and instruction data for the recipes."""

from __future__ import annotations

from milepost.data.collate import PaddingCollator
from milepost.data.instruct import FORMS, Example, tokenize_rows
from milepost.data.loader import ResumableLoader
from milepost.data.order import global_order, sample_seed
from milepost.data.tasks import generate_tasks, split_tasks
from milepost.data.tokenized import TokenizedDataset

__all__ = [
    "FORMS",
    "Example",
    "PaddingCollator",
    "ResumableLoader",
    "TokenizedDataset",
    "generate_tasks",
    "global_order",
    "sample_seed",
    "split_tasks",
    "tokenize_rows",
]
