"""torch loaders that save their position (torchdata's StatefulDataLoader): what they need to resume exactly."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from milepost.errors import UnsupportedStateError

logger = logging.getLogger("milepost")

_RANDOM = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


def check_samplers(loader: DataLoader[Any], path: str) -> None:
    """Raise UnsupportedStateError for a random sampler without a state of its own.

    The loader would draw a new order after a resume, and skip as many samples of that as it had yielded of the old.
    """
    for sampler in _samplers(loader) if _is_torchdata(loader) else ():
        if type(sampler) in _RANDOM:
            raise UnsupportedStateError(
                f"{path} has a torch.utils.data.{type(sampler).__name__}, which cannot go on in the same order after a "
                "resume. Use shuffle=True, a sampler of torchdata.stateful_dataloader.sampler, or "
                "milepost.data.ResumableLoader.",
                path=path,
            )


def give_generator(loader: DataLoader[Any]) -> None:
    """Let the loader draw from a generator of its own; nothing is drawn for it.

    Without one it draws from torch's global generator whenever it is iterated. If it draws from its sampler's, an
    epoch begun after a resume has another order: the sampler puts that generator back to where its epoch began, and
    the loader's own draw, which came after, is lost.
    """
    samplers = list(_samplers(loader))
    shared = loader.generator is not None
    if shared and not (_is_torchdata(loader) and any(_generator(each) is loader.generator for each in samplers)):
        return
    seed = loader.generator.initial_seed() if loader.generator is not None else torch.initial_seed()
    loader.generator = torch.Generator()
    loader.generator.manual_seed(seed)
    for sampler in samplers:
        if getattr(sampler, "generator", loader) is None:
            sampler.generator = loader.generator
    logger.info(
        "a loader in the state drew from %s generator whenever it was iterated; it has one of its own for that now",
        "its sampler's" if shared else "torch's global",
    )


def _is_torchdata(loader: DataLoader[Any]) -> bool:
    return any(base.__module__.partition(".")[0] == "torchdata" for base in type(loader).__mro__)


def _generator(sampler: object) -> object:
    return getattr(sampler, "generator", None)


def _samplers(loader: DataLoader[Any]) -> Iterator[Any]:
    sampler: Any
    for sampler in (loader.sampler, loader.batch_sampler):
        while sampler is not None:
            yield sampler
            sampler = getattr(sampler, "sampler", None)
