"""Everything that a run needs before its model: tokenizer, tokens to train and to validate on, number of steps."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from milepost.data import TokenizedDataset
from milepost.recipes.config import RecipeConfig
from milepost.recipes.datasets import Table, load_tables
from milepost.recipes.lengths import RunLength, run_length
from milepost.recipes.models import find_source
from milepost.recipes.origins import Origin, refuse_changed_data
from milepost.recipes.tokenizers import pretrained_tokenizer, train_tokenizer


@dataclass(frozen=True, slots=True)
class PreparedData:
    """The data of a run as tokens, and how long it trains on them."""

    tokenizer: PreTrainedTokenizerBase
    train: TokenizedDataset
    validation: TokenizedDataset | None
    length: RunLength

    def sentence(self) -> str:
        """What there is, in one line."""
        told = self.length.sentence() + f"; the run has {self.length.total_steps:,} steps"
        return told if self.validation is None else f"{told}. {len(self.validation):,} rows to validate on"


def prepare_data(config: RecipeConfig, origin: Origin | None) -> PreparedData:
    """Read rows and tokenize them. Raises ConfigError for what cannot be used, or is not what ``origin`` had."""
    source = config.tokenizer_path
    if source is not None and origin is None:
        # Sooner than the data, which takes longer.
        source = find_source(source, "tokenizer", "tokenizer_config.json")
    train, validation = load_tables(config)
    tokenizer = _tokenizer(config, origin, source, train)
    longest = config.tokenizer.max_seq_len
    tokens = train.tokenized(tokenizer, longest)
    if origin is not None:
        refuse_changed_data(origin, tokens.fingerprint, config.resume.allow_changes)
    held = None if validation is None else validation.tokenized(tokenizer, longest)
    return PreparedData(tokenizer, tokens, held, run_length(config, len(tokens)))


def _tokenizer(
    config: RecipeConfig, origin: Origin | None, source: str | None, train: Table
) -> PreTrainedTokenizerBase:
    if origin is not None and not {"tokenizer.path", "tokenizer.vocab_size"} & set(origin.changed):
        # The one that the run began with, as it is beside the weights; it is not made again.
        tokenizer = pretrained_tokenizer(str(origin.checkpoint.path))
    elif source is not None:
        tokenizer = pretrained_tokenizer(source)
    else:
        tokenizer = train_tokenizer(train.texts(), config.tokenizer.vocab_size or 0)
    if config.tokenizer.chat_template is not None:
        tokenizer.chat_template = config.tokenizer.chat_template
    return tokenizer
