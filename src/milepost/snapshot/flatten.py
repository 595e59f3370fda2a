"""Nested Python values to a JSON tree plus tensors, and back, types and all; without pickle.

Values that JSON has are themselves. All others are an object with one tag: ``{"$tuple": [...]}``. A dict is an object
if its keys are texts that do not begin with ``$``, else ``{"$dict": [[key, value], ...]}``. The tags are listed in
docs/format-v1.md.
"""

from __future__ import annotations

import base64
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Container, Mapping
from typing import Any

import numpy as np
import torch

from milepost.errors import CorruptCheckpointError, UnsupportedStateError
from milepost.records import JSON, StoredSource, TensorBytes, TensorSource
from milepost.snapshot.live import LiveTensor
from milepost.snapshot.tensors import empty_tensor, storage_key

# Python reads and writes no longer ones as decimal digits, unless told to.
_MOST_BITS = 10_000
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class Flattener:
    """Collects the tensors of a state; the same tensor met twice is stored once.

    ``tensors`` maps names to the live tensors (and to the bytes of NumPy arrays). ``deferrable`` are the addresses of
    memory that only an optimizer's step changes.
    """

    def __init__(self, deferrable: Container[int] = ()) -> None:
        # These keep the tensors alive: addresses identify tensors only as long as those are.
        self.tensors: dict[str, TensorSource] = {}
        self.deferrable = deferrable
        self._names: dict[object, str] = {}
        self._open: set[int] = set()

    def flatten(self, value: Any, name: str, path: str) -> JSON:
        """The JSON tree of a value. ``name`` begins its tensors' names, ``path`` is its place for messages.

        Raises UnsupportedStateError, with the full path, for what cannot be stored.
        """
        kind = type(value)
        if kind is torch.Tensor:
            return self._tensor(value, name, path)
        if value is None or kind is bool or kind is int:
            if kind is int and value.bit_length() > _MOST_BITS:
                raise UnsupportedStateError(f"{path} is a whole number of more than {_MOST_BITS} bits", path=path)
            return value
        if kind is float:
            return value if math.isfinite(value) else {"$float": repr(value)}
        if kind is str:
            return _text(value)
        if isinstance(value, torch.Tensor):
            return self._tensor(value, name, path)
        if isinstance(value, np.ndarray | np.generic):
            return self._numpy(value, name, path)
        encoder = _SCALARS.get(kind)
        if encoder is not None:
            return encoder(value)
        if kind in _CONTAINERS:
            return self._container(value, kind, name, path)
        raise UnsupportedStateError(
            f"{path} is of type {kind.__module__}.{kind.__qualname__}, which cannot be stored without pickle. Store "
            "numbers, texts, tensors, and lists or dicts of them instead.",
            path=path,
        )

    def _container(self, value: Any, kind: type, name: str, path: str) -> JSON:
        if id(value) in self._open:
            raise UnsupportedStateError(f"{path} contains itself; a state must be a tree", path=path)
        if len(self._open) > 200:
            raise UnsupportedStateError(f"{path} is nested more than 200 deep", path=path)
        self._open.add(id(value))
        try:
            if kind is dict and all(map(_is_plain_key, value)):
                # Most of a large state are dicts of tensors, and training waits: their places are spelled if asked for.
                return {
                    key: self._tensor(item, f"{name}.{key}", path, key)
                    if type(item) is torch.Tensor
                    else self.flatten(item, f"{name}.{key}", f"{path}[{key!r}]")
                    for key, item in value.items()
                }
            if kind in _MAPPINGS:
                return {_MAPPINGS[kind]: [self._pair(key, item, name, path) for key, item in value.items()]}
            if all(type(item) is int and item.bit_length() <= _MOST_BITS for item in value):
                # A generator's state has hundreds of them.
                items: list[JSON] = list(value)
            else:
                items = [self.flatten(item, f"{name}.{at}", f"{path}[{at}]") for at, item in enumerate(value)]
        finally:
            self._open.discard(id(value))
        if kind is list:
            return items
        if kind is deque:
            return {"$deque": items, "maxlen": value.maxlen}
        return {f"${kind.__name__}": items}

    def _pair(self, key: Any, item: Any, name: str, path: str) -> list[JSON]:
        place = f"{path}[{key!r}]"
        if isinstance(key, torch.Tensor):
            raise UnsupportedStateError(f"{place}: a tensor cannot be a key", path=place)
        return [self.flatten(key, f"{name}.key", place), self.flatten(item, f"{name}.{key}", place)]

    def _tensor(self, tensor: torch.Tensor, name: str, path: str, key: str | None = None) -> JSON:
        live = LiveTensor(tensor, path, self.deferrable, key)
        place = storage_key(tensor)
        stored = self._names.get(place) if place is not None else None
        if stored is None:
            stored = self._store(name, live)
            if place is not None:
                self._names[place] = stored
        leaf: dict[str, JSON] = {"$tensor": stored}
        # isinstance would ask Parameter's metaclass, which takes longer than all the rest.
        if type(tensor) is torch.nn.Parameter:
            leaf["parameter"] = True
        if tensor.requires_grad:
            leaf["requires_grad"] = True
        return leaf

    def _numpy(self, value: Any, name: str, path: str) -> JSON:
        if not _is_plain(value.dtype):
            raise UnsupportedStateError(f"{path} is a NumPy value of dtype {value.dtype}, not plain numbers", path=path)
        if type(value) is not np.ndarray and type(value) is not value.dtype.type:
            raise UnsupportedStateError(f"{path} is a {type(value).__name__}, not a plain array", path=path)
        data = value.tobytes()
        if isinstance(value, np.generic):
            return {"$numpy": value.dtype.str, "bytes": base64.b64encode(data).decode()}
        stored = self._store(name, TensorBytes("U8", (len(data),), memoryview(bytearray(data))))
        return {"$ndarray": stored, "dtype": value.dtype.str, "shape": list(value.shape)}

    def _store(self, name: str, data: TensorSource) -> str:
        # Names of tensors are written as UTF-8.
        stem = name if name.isascii() else name.encode("utf-8", "backslashreplace").decode()
        unique, count = stem, 1
        while unique in self.tensors:
            count += 1
            unique = f"{stem}~{count}"
        self.tensors[unique] = data
        return unique


class Unflattener:
    """Rebuilds values; tensors that were one are one again. ``tensors`` maps names to what was stored.

    With ``deferred`` tensors and arrays are made empty: ``pending`` are the stored ones with the memory for their
    bytes, which somebody has to bring there.
    """

    def __init__(self, tensors: Mapping[str, StoredSource], *, deferred: bool = False) -> None:
        self.pending: list[tuple[StoredSource, memoryview]] = []
        self._tensors = tensors
        self._deferred = deferred
        self._made: dict[tuple[str, bool, bool], torch.Tensor] = {}

    def unflatten(self, tree: JSON) -> Any:
        """The value of a JSON tree. Raises CorruptCheckpointError for a tree that ``flatten`` cannot have made."""
        try:
            return self._value(tree)
        except (KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
            raise CorruptCheckpointError(f"the stored training state cannot be understood ({error!r})") from error

    def members(self, tree: JSON) -> Any:
        """The value of a JSON tree; if it is a dict with texts as keys, its own tensors stay as they are stored."""
        if type(tree) is not dict or next(iter(tree), "")[:1] == "$":
            return Unflattener(self._tensors).unflatten(tree)
        found = {}
        for key, item in tree.items():
            stored = type(item) is dict and "$tensor" in item and item["$tensor"] in self._tensors
            found[key] = self._tensors[item["$tensor"]] if stored else self.unflatten(item)
        return found

    def _value(self, tree: JSON) -> Any:
        if isinstance(tree, list):
            return [self._value(item) for item in tree]
        if not isinstance(tree, dict):
            return tree
        tag = next(iter(tree), "")
        if tag[:1] != "$":
            return {key: self._value(item) for key, item in tree.items()}
        content = tree[tag]
        if tag == "$tensor":
            return self._tensor(content, tree)
        if tag == "$ndarray":
            data = bytearray(self._tensors[content].nbytes)
            self._fill(self._tensors[content], memoryview(data))
            return _array(data, tree["dtype"], tuple(tree["shape"]))
        if tag == "$deque":
            return deque(self._value(content), tree["maxlen"])
        if tag == "$numpy":
            return _array(bytearray(base64.b64decode(tree["bytes"])), content, ())[()]
        if tag in _MAPPING_TYPES:
            return _MAPPING_TYPES[tag]({self._value(key): self._value(item) for key, item in content})
        return _DECODERS[tag](self._value(content))

    def _tensor(self, name: str, tree: Mapping[str, JSON]) -> torch.Tensor:
        is_parameter, requires_grad = tree.get("parameter") is True, tree.get("requires_grad") is True
        key = (name, is_parameter, requires_grad)
        if key not in self._made:
            if key[1:] == (False, False):
                tensor, view = empty_tensor(self._tensors[name])
                self._fill(self._tensors[name], view)
            else:
                # A parameter and a plain tensor of the same memory are two objects, and share it again.
                tensor = self._tensor(name, {}).detach()
                tensor = torch.nn.Parameter(tensor, requires_grad) if is_parameter else tensor.requires_grad_()
            self._made[key] = tensor
        return self._made[key]

    def _fill(self, stored: StoredSource, target: memoryview) -> None:
        if self._deferred:
            self.pending.append((stored, target))
        elif target.nbytes:
            stored.copy_into(target, 0)


def _is_plain(dtype: np.dtype[Any]) -> bool:
    # Types that others have added to NumPy call themselves plain bytes, and objects and texts of any length are
    # addresses: neither would come back from the bytes as it was.
    return dtype.kind in "biufcmMSUV" and dtype.names is None and np.dtype(dtype.str) == dtype


def _array(data: bytearray, name: str, shape: tuple[int, ...]) -> Any:
    dtype = np.dtype(name)
    # NumPy gives an empty text a byte that its dtype has not.
    whole = dtype.itemsize == 0 or math.prod(shape) * dtype.itemsize == len(data)
    if not _is_plain(dtype) or not whole:
        raise ValueError(f"{len(data)} bytes do not make {name!r} of shape {list(shape)}")
    return np.ndarray(shape, dtype, buffer=data) if dtype.itemsize and data else np.zeros(shape, dtype)


def _is_plain_key(key: object) -> bool:
    return type(key) is str and key[:1] != "$" and (key.isascii() or _is_text(key))


def _is_text(value: str) -> bool:
    # A lone surrogate cannot be written as UTF-8.
    return not any("\ud800" <= letter <= "\udfff" for letter in value)


def _text(value: str) -> JSON:
    if value.isascii() or _is_text(value):
        return value
    return {"$text": base64.b64encode(value.encode("utf-8", "surrogatepass")).decode()}


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name} is no dtype")
    return dtype


def _real(value: float) -> JSON:
    return value if math.isfinite(value) else {"$float": repr(value)}


_MAPPINGS: dict[type, str] = {dict: "$dict", OrderedDict: "$ordered", Counter: "$counter"}
_MAPPING_TYPES: dict[str, Any] = {tag: kind for kind, tag in _MAPPINGS.items()}
_CONTAINERS = frozenset({*_MAPPINGS, list, tuple, set, frozenset, deque})
_SCALARS: dict[type, Any] = {
    bytes: lambda value: {"$bytes": base64.b64encode(value).decode()},
    complex: lambda value: {"$complex": [_real(value.real), _real(value.imag)]},
    torch.Size: lambda value: {"$size": list(value)},
    torch.dtype: lambda value: {"$dtype": str(value).removeprefix("torch.")},
    torch.device: lambda value: {"$device": str(value)},
}
_DECODERS: dict[str, Any] = {
    "$float": _NOT_FINITE.__getitem__,
    "$text": lambda value: base64.b64decode(value).decode("utf-8", "surrogatepass"),
    "$bytes": base64.b64decode,
    "$complex": lambda value: complex(*value),
    "$size": torch.Size,
    "$dtype": _dtype,
    "$device": torch.device,
    "$tuple": tuple,
    "$set": set,
    "$frozenset": frozenset,
}
