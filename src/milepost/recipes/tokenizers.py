"""Tokenizers: pretrained ones, the one of the checkpoint a run goes on from, and a byte-pair one made from the text."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from milepost.errors import ConfigError

PAD, END = "<|pad|>", "<|end|>"


def train_tokenizer(texts: Iterable[str], vocab_size: int, chat_template: str) -> PreTrainedTokenizerBase:
    """A byte-level byte-pair tokenizer of at most ``vocab_size`` tokens, a function of the texts and their order.

    It knows every byte, so no text is unknown to it. Token 0 is padding, token 1 ends an answer.
    """
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if vocab_size < len(alphabet) + 2:
        raise ConfigError(
            f"tokenizer.vocab_size: {vocab_size} is too few; every byte and two special tokens are in the vocabulary, "
            f"so the least is {len(alphabet) + 2}.",
            key="tokenizer.vocab_size",
            value=vocab_size,
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(PAD, special=True), AddedToken(END, special=True)],
        initial_alphabet=sorted(alphabet),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=END)
    fast.chat_template = chat_template
    return fast


def pretrained_tokenizer(source: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder or of the Hub; one without padding pads with its end token. Raises ConfigError."""
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            source, local_files_only=Path(source).is_dir()
        )
    except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
        line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(
            f"tokenizer.path: no tokenizer could be loaded from {source} ({line.rstrip('.')}).",
            key="tokenizer.path",
            value=source,
        ) from error
    if tokenizer.eos_token_id is None:
        raise ConfigError(
            f"tokenizer.path: the tokenizer of {source} has no end-of-sequence token, and an answer has to end.",
            key="tokenizer.path",
            value=source,
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer
