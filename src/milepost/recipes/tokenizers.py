"""Tokenizers: pretrained ones, the one of the checkpoint a run goes on from, and a byte-pair one made from the text."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from milepost.errors import ConfigError
from milepost.recipes.huggingface import first_line

PAD, END, ROLES = "<|pad|>", "<|end|>", ("<|system|>", "<|user|>", "<|assistant|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_SPECIAL = (PAD, END, *ROLES)


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerBase:
    """A byte-level byte-pair tokenizer of at most ``vocab_size`` tokens, a function of the texts alone.

    It knows every byte, so no text is unknown to it. Its first tokens are special: padding, the end of a turn, and
    one that begins a turn for each role of ``CHAT_TEMPLATE``. Raises ConfigError if there is no room for these.
    """
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if vocab_size < len(alphabet) + len(_SPECIAL):
        raise ConfigError(
            f"tokenizer.vocab_size: {vocab_size} is too few; all bytes and {len(_SPECIAL)} special tokens belong "
            f"to the vocabulary, so the least is {len(alphabet) + len(_SPECIAL)}.",
            key="tokenizer.vocab_size",
            value=vocab_size,
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(token, special=True) for token in _SPECIAL],
        initial_alphabet=sorted(alphabet),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast: PreTrainedTokenizerBase = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, additional_special_tokens=list(ROLES)
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def pretrained_tokenizer(source: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder or of the Hub; one without padding pads with its end token. Raises ConfigError."""
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            source, local_files_only=Path(source).is_dir()
        )
    except Exception as error:
        raise ConfigError(
            f"tokenizer.path: no tokenizer could be loaded from {source} ({first_line(error)}).",
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
