"""What is wrong with a configuration, said for the person who wrote it: key, value, rule and the nearest known key."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from milepost.errors import ConfigError
from milepost.recipes.config import RecipeConfig
from milepost.recipes.optimizer_settings import SETTINGS


def explained(error: ValidationError, place: str) -> ConfigError:
    """One error for all faults that pydantic found; ``place`` is the file. A fault with several rules is told once."""
    told: dict[str, list[str]] = {}
    first: tuple[str, Any] | None = None
    for fault in error.errors(include_url=False):
        path = [str(part) for part in fault["loc"] if not _is_union_branch(part)]
        first = first or (".".join(path), fault["input"])
        subject, rule = _subject_and_rule(path, fault)
        rules = told.setdefault(subject, [])
        if rule not in rules:
            rules.append(rule)
    sentences = [f"{subject}{', or: '.join(rules)}" for subject, rules in told.items()]
    key, value = first or ("", None)
    return ConfigError(f"{place}: " + "; ".join(sentences), key=key, value=value)


def nearest_key(path: Sequence[str]) -> str:
    """``; did you mean …?`` for the last part of a key's path: a near word at its place, the same word elsewhere."""
    *parents, word = path
    model: Any = RecipeConfig
    for part in parents:
        model = _section(model, part)
    here = list(_names(model)) if model is not None else []
    elsewhere: dict[str, str] = {}
    for key in (*_all_keys(RecipeConfig), *(f"optimizer.{setting}" for setting in SETTINGS["AdamW"])):
        if "." in key:
            elsewhere.setdefault(key.rsplit(".", 1)[-1], key)
    for known, likeness in ((here, 0.75), (elsewhere, 1.0), (here, 0.6), (elsewhere, 0.75)):
        near = difflib.get_close_matches(word, known, n=1, cutoff=likeness)
        if near:
            return f"; did you mean {elsewhere[near[0]] if known is elsewhere else '.'.join([*parents, near[0]])!r}?"
    return f"; there are {', '.join(here)}" if parents and here else ""


def _subject_and_rule(path: Sequence[str], fault: Any) -> tuple[str, str]:
    key = ".".join(path)
    if fault["type"] == "extra_forbidden":
        if key in _all_keys(RecipeConfig):
            parent = ".".join(path[:-1])
            return f"{key}: ", f"{parent} has other keys that it cannot stand beside; ~{parent}.… drops one"
        return f"unknown key {key!r}", nearest_key(path)
    if fault["type"] == "missing":
        return f"{key} ", "is needed"
    rule = str(fault["msg"]).removeprefix("Value error, ")
    section = _section_at(path)
    if fault["type"] in ("model_type", "model_attributes_type") and section is not None:
        rule = f"must be a section of keys: {', '.join(_names(section))}"
    elif fault["type"] == "dict_type":
        rule = "must be keys and values"
    if isinstance(fault["input"], Mapping | BaseModel):
        # The rules of a list name the key themselves.
        return ("", rule) if not key or rule.startswith(f"{key}.") or rule.startswith(f"{key}:") else (f"{key}: ", rule)
    return f"{key}: {fault['input']!r}: ", rule


def _section_at(path: Sequence[str]) -> Any:
    model: Any = RecipeConfig
    for part in path:
        model = _section(model, part)
    return model


def _section(model: Any, name: str) -> Any:
    """The class of a section by its key, None if there is no such section."""
    return next((found[0] for key, found in _sections(model) if key == name), None)


def _names(model: Any) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield field.alias or name


def _sections(model: Any) -> Iterator[tuple[str, list[type[BaseModel]]]]:
    """Keys that hold a section, and the classes that it may be of."""
    for name, field in model.model_fields.items() if model is not None else ():
        found = [each for each in _classes(field.annotation) if issubclass(each, BaseModel)]
        if found:
            yield field.alias or name, found


def _classes(annotation: Any) -> Iterator[type]:
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType, typing.Annotated):
        for each in typing.get_args(annotation):
            yield from _classes(each)
    elif isinstance(annotation, type) and origin is None:
        yield annotation


def _all_keys(model: Any, prefix: str = "") -> Iterator[str]:
    inner = dict(_sections(model))
    for name in _names(model):
        yield prefix + name
        if name in inner:
            yield from (key for section in inner[name] for key in _all_keys(section, f"{prefix}{name}."))


def _is_union_branch(part: object) -> bool:
    # pydantic puts the class of a union's branch, or a type's name, into the path.
    text = str(part)
    return (
        text.endswith("Config")
        or text in ("int", "str", "float", "constrained-int", "constrained-float")
        or "[" in text
    )
