"""Tokenizers small enough to write their tokens by hand."""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

PAD, BOS, EOS = 0, 1, 2

CHAT = (
    "{{ bos_token }}{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}</s>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def letters(*, chat: str | None = None, starts: bool = False, end: str | None = "</s>") -> PreTrainedTokenizerFast:
    """One token a letter, but ``:b`` is one too; with ``starts`` texts begin with BOS."""
    names = ["<pad>", "<s>", "</s>", "<user>", "<assistant>", "<think>"]
    known = [*names, *(chr(code) for code in range(32, 127)), "\n", ":b"]
    tokenizer = Tokenizer(models.BPE({name: number for number, name in enumerate(known)}, [(":", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r":b|[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    if starts:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token=end,
        additional_special_tokens=["<user>", "<assistant>", "<think>"],
        chat_template=chat,
    )


def spelled(tokenizer: PreTrainedTokenizerFast, numbers: list[int]) -> str:
    """The text of ids or labels; ``_`` for what is not taught."""
    return "".join("_" if number == -100 else tokenizer.decode([number]) for number in numbers)
