"""Reading configurations: shipped ones by name, others by path, with overrides; and writing the resolved form."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from milepost.errors import ConfigError
from milepost.recipes.config import RecipeConfig
from milepost.recipes.config_faults import explained
from milepost.recipes.spelling import nearest

# Settings that a resumed run cannot change and still go on bit for bit.
GUARDED = (
    "model",
    "tokenizer",
    "dataset",
    "validation_dataset.split_from_train",
    "seed",
    "shuffle",
    "batch_size",
    "gradient_accumulation_steps",
    "drop_incomplete_window",
    "max_steps_per_epoch",
    "dtype",
    "loss",
    "optimizer.name",
)


def shipped_configs() -> dict[str, str]:
    """Names of the configurations that come with Milepost, and their text."""
    root = resources.files("milepost.recipes") / "configs"
    found = {}
    for folder in (root, *(entry for entry in root.iterdir() if entry.is_dir())):
        prefix = "" if folder is root else f"{folder.name}/"
        for entry in folder.iterdir():
            if entry.name.endswith(".yaml"):
                found[prefix + entry.name.removesuffix(".yaml")] = entry.read_text(encoding="utf-8")
    return dict(sorted(found.items()))


def load_config(name_or_path: str, overrides: Sequence[str] = ()) -> RecipeConfig:
    """A checked configuration: a shipped one's name or a file's path, with ``key=value`` and ``~key`` overrides.

    Raises ConfigError naming file, key, value, rule and, for a misspelt key, the nearest known one.
    """
    text, place = _read(name_or_path)
    return parse_config(text, place, overrides)


def parse_config(text: str, place: str, overrides: Sequence[str] = ()) -> RecipeConfig:
    """A checked configuration from YAML; ``place`` is where the text is from, for messages. Raises ConfigError."""
    try:
        loaded = OmegaConf.create(text)
        if not OmegaConf.is_dict(loaded):
            raise ConfigError(f"{place}: a configuration is a list of keys and values")
        values: Any = OmegaConf.to_container(_overridden(loaded, overrides), resolve=True, throw_on_missing=True)
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{place}: it cannot be read as YAML ({_one_line(error)})") from error
    try:
        return RecipeConfig.model_validate(values)
    except ValidationError as error:
        raise explained(error, place) from error


def resolved_yaml(config: RecipeConfig) -> str:
    """The configuration as YAML, overrides and defaults included; reading it gives the same configuration."""
    values = _as_written(config.model_dump(mode="json", by_alias=True))
    # Not yaml.safe_dump: OmegaConf reads more texts as numbers than YAML does (1e5), and knows which to put in quotes.
    return OmegaConf.to_yaml(OmegaConf.create(values))


def config_file_name(name_or_path: str) -> str:
    """The name under which a run's configuration is stored in its checkpoints.

    The configuration's name or relative path, lower-cased, ``/`` to ``_``; of an absolute path the last part.
    """
    path = PurePosixPath(name_or_path)
    parts = [path.name] if path.is_absolute() or ".." in path.parts or path.parts[:1] == ("~",) else list(path.parts)
    stem = "_".join(parts).lower().removesuffix(".yaml").removesuffix(".yml")
    return f"{stem}.yaml"


def changed_keys(old: RecipeConfig, new: RecipeConfig) -> list[str]:
    """Guarded keys whose values differ, written as ``section.key``."""
    before, after = _leaves(old.model_dump(mode="json")), _leaves(new.model_dump(mode="json"))
    differing = [key for key in dict.fromkeys([*before, *after]) if before.get(key) != after.get(key)]
    return [key for key in differing if any(key == name or key.startswith(f"{name}.") for name in GUARDED)]


def _read(name_or_path: str) -> tuple[str, str]:
    path = Path(name_or_path).expanduser()
    if path.suffix in (".yaml", ".yml") or path.is_file():
        try:
            return path.read_text(encoding="utf-8"), str(path)
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise ConfigError(f"the configuration {path} cannot be read: {reason}") from error
    shipped = shipped_configs()
    if name_or_path not in shipped:
        raise ConfigError(
            f"there is no configuration {name_or_path!r}{nearest(name_or_path, shipped)} `milepost configs` lists the "
            "shipped ones; a file of your own ends in .yaml."
        )
    return shipped[name_or_path], name_or_path


def _overridden(loaded: Any, overrides: Sequence[str]) -> Any:
    for override in overrides:
        if override.startswith("~"):
            _drop(loaded, override[1:])
            continue
        key, equals, _ = override.partition("=")
        if not equals or not key:
            raise ConfigError(f"the override {override!r} must be key=value, or ~key to drop a key")
        try:
            changes = OmegaConf.from_dotlist([override])
        except (yaml.YAMLError, OmegaConfBaseException) as error:
            raise ConfigError(f"the override {override!r} cannot be read ({_one_line(error)})") from error
        loaded = OmegaConf.merge(loaded, changes)
    return loaded


def _drop(loaded: Any, key: str) -> None:
    *parents, last = key.split(".")
    holder = loaded
    for parent in parents:
        holder = holder.get(parent) if OmegaConf.is_dict(holder) else None
    if not OmegaConf.is_dict(holder) or last not in holder:
        raise ConfigError(f"the override ~{key} drops a key that is not set", key=key)
    del holder[last]


def _as_written(value: Any) -> Any:
    """The value with texts spelled such that OmegaConf reads them as they are, not as references to other keys."""
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", r"\1\1\\${", value)
    if isinstance(value, Mapping):
        return {name: _as_written(inner) for name, inner in value.items()}
    return [_as_written(inner) for inner in value] if isinstance(value, list) else value


def _leaves(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            leaves.update(_leaves(value, f"{prefix}{name}."))
        else:
            leaves[f"{prefix}{name}"] = value
    return leaves


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
