"""What is written beside the weights: configurations, tokenizers, files; read once, when a run is set up."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from torch import nn

from milepost.errors import ConfigError
from milepost.records import TextAsset
from milepost.storage.layout import is_reserved, is_safe_name

_LONGEST = 255


def collect_assets(assets: Iterable[Any], config_name: str | None = None) -> dict[str, bytes]:
    """File names and contents of assets: objects with ``save_pretrained``, files, folders, ``TextAsset``s.

    Of an ``nn.Module`` its ``config`` and ``generation_config`` are taken, never its weights. Raises ConfigError for
    an absent file, a name that a checkpoint's own files have, or one that two assets share with other contents.
    """
    files: dict[str, bytes] = {}
    for asset in assets:
        for name, content in _contents(asset).items():
            if any(map(is_reserved, _with_parents(name))) or not is_safe_name(name):
                raise ConfigError(f"asset {name!r} has a name that a checkpoint keeps for its own files; rename it")
            if any(len(part.encode()) > _LONGEST for part in name.split("/")):
                raise ConfigError(f"asset {name!r} has a name of more than {_LONGEST} bytes; rename it")
            if files.setdefault(name, content) != content:
                raise ConfigError(f"two assets have the name {name!r}; rename one of them")
    for name in files:
        if folders := [folder for folder in _with_parents(name)[1:] if folder in files]:
            raise ConfigError(f"asset {name!r} lies in {folders[0]!r}, which is the name of another; rename one")
    if config_name is not None and config_name not in files:
        raise ConfigError(f"config_name={config_name!r} is no asset's name; there are {', '.join(files) or 'none'}")
    return files


def _with_parents(name: str) -> list[str]:
    return [name, *map(str, PurePosixPath(name).parents)]


def _contents(asset: Any) -> dict[str, bytes]:
    if isinstance(asset, TextAsset):
        return {asset.name: asset.text.encode()}
    if isinstance(asset, str | Path):
        return _from_path(Path(asset))
    if isinstance(asset, nn.Module):
        parts = (getattr(asset, name, None) for name in ("config", "generation_config"))
        return {name: content for part in parts if hasattr(part, "save_pretrained") for name, content in _saved(part)}
    if hasattr(asset, "save_pretrained"):
        return dict(_saved(asset))
    raise ConfigError(
        f"an asset of type {type(asset).__name__} cannot be written; give an object with save_pretrained, a file, "
        "a folder or a TextAsset"
    )


def _from_path(path: Path) -> dict[str, bytes]:
    if path.is_dir():
        if not path.resolve().name:
            raise ConfigError(f"asset {path} is a whole file system; name the files or folders in it")
        return {f"{path.resolve().name}/{name}": content for name, content in _files_in(path)}
    try:
        return {path.name: path.read_bytes()}
    except OSError as error:
        raise ConfigError(f"asset {path} cannot be read ({error.strerror})") from error


def _saved(asset: Any) -> list[tuple[str, bytes]]:
    with tempfile.TemporaryDirectory(prefix="milepost-") as folder:
        asset.save_pretrained(folder)
        return _files_in(Path(folder))


def _files_in(folder: Path) -> list[tuple[str, bytes]]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [(path.relative_to(folder).as_posix(), path.read_bytes()) for path in files]
