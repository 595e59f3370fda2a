"""A disk whose power fails: what was not forced to it may be there, in part, or not at all.

The model is meaner than most file systems. Names and contents are kept apart: a file's bytes are safe after its own
``sync``, a name in a folder after ``sync_folder`` of that folder. Whatever is not safe may be lost alone, or alone
survive. A folder that was moved is never in two places; if only the folder it left was synced, it may be in neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from milepost.storage.backend import WritableFile
from tests.faults import UnsyncedBackend

Tree = dict[str, "Tree | bytes | str"]


@dataclass(eq=False)
class Folder:
    """A folder; ``names`` is what a running system sees, ``safe`` what is on the disk for certain."""

    names: dict[str, Folder | File] = field(default_factory=dict)
    safe: dict[str, Folder | File] = field(default_factory=dict)


@dataclass(eq=False)
class File:
    """A file; ``safe`` is how many of its bytes are on the disk for certain."""

    content: bytes = b""
    safe: int = 0


@dataclass(eq=False)
class Link(File):
    """A symbolic link."""

    target: str = ""


@dataclass(eq=False)
class Change:
    """One operation on names that is not safe yet: each place (folder, name) and what it holds afterwards."""

    places: list[tuple[Folder, str, Folder | File | None]]


class PowerModel(UnsyncedBackend):
    """Does every operation in ``root``, and knows what a power failure at each would leave (``trees``)."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.top = self._load(root)
        self.pending: list[Change] = []
        self.trees: dict[object, Tree] = {}
        self.note()

    def create(self, path: Path, size: int | None = None) -> ModelFile:
        real = super().create(path, size)
        file = File()
        self._change([(*self._place(path), file)])
        return ModelFile(self, real, file)

    def make_folder(self, path: Path) -> None:
        super().make_folder(path)
        self._change([(*self._place(path), Folder())])

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        folder, name = self._place(source)
        self._change([(*self._place(target), folder.names[name]), (folder, name, None)])

    def remove_file(self, path: Path) -> None:
        super().remove_file(path)
        self._change([(*self._place(path), None)])

    def remove_folder(self, path: Path) -> None:
        super().remove_folder(path)
        self._change([(*self._place(path), None)])

    def append(self, path: Path, data: bytes) -> None:
        if not path.exists():
            super().append(path, b"")
            self._change([(*self._place(path), File())])
        super().append(path, data)
        folder, name = self._place(path)
        file = folder.names[name]
        assert isinstance(file, File)
        file.content += bytes(data)
        self.note()
        file.safe = len(file.content)
        self.note()

    def link(self, path: Path, target: str) -> None:
        super().link(path, target)
        self._change([(*self._place(path), Link(target=target))])

    def sync_folder(self, path: Path) -> None:
        folder = self._find(path)
        for change in self.pending:
            # The place that a move ends in settles the whole move; the one it leaves, only its own half.
            whole = change.places[0][0] is folder
            done = [place for place in change.places if whole or place[0] is folder]
            _apply(done, safe=True)
            change.places = [place for place in change.places if place not in done]
        self.pending = [change for change in self.pending if change.places]
        self.note()

    def note(self) -> None:
        """Collect every tree that a power failure at this moment could leave."""
        for tree in self._outcomes():
            self.trees.setdefault(_key(tree), tree)

    def _outcomes(self) -> Iterator[Tree]:
        changes = self.pending
        survivors = [[], changes]
        survivors += [[change] for change in changes]
        survivors += [[other for other in changes if other is not change] for change in changes]
        for chosen in survivors:
            for unsafe_share in (0, 1, 2):
                yield _tree(self.top, chosen, unsafe_share)

    def _change(self, places: list[tuple[Folder, str, Folder | File | None]]) -> None:
        _apply(places, safe=False)
        self.pending.append(Change(places))
        self.note()

    def _find(self, path: Path) -> Folder:
        node: Folder | File = self.top
        for part in path.relative_to(self.root).parts:
            assert isinstance(node, Folder)
            node = node.names[part]
        assert isinstance(node, Folder)
        return node

    def _place(self, path: Path) -> tuple[Folder, str]:
        return self._find(path.parent), path.name

    def _load(self, path: Path) -> Folder:
        names: dict[str, Folder | File] = {}
        for child in sorted(path.iterdir()):
            if child.is_symlink():
                names[child.name] = Link(target=str(child.readlink()))
                continue
            content = b"" if child.is_dir() else child.read_bytes()
            names[child.name] = self._load(child) if child.is_dir() else File(content, len(content))
        return Folder(names, dict(names))


class ModelFile:
    """A file of a ``PowerModel``."""

    def __init__(self, model: PowerModel, real: WritableFile, file: File) -> None:
        self._model = model
        self._real = real
        self._file = file

    def write(self, data: memoryview | bytes) -> None:
        self._real.write(data)
        self._file.content += bytes(data)
        self._model.note()

    @property
    def direct(self) -> bool:
        return self._real.direct

    def sync(self) -> None:
        self._file.safe = len(self._file.content)
        self._model.note()

    def close(self) -> None:
        self._real.close()


def materialise(tree: Tree, folder: Path) -> None:
    """Write a tree to a new folder."""
    folder.mkdir()
    for name, node in tree.items():
        if isinstance(node, str):
            (folder / name).symlink_to(node)
        elif isinstance(node, bytes):
            (folder / name).write_bytes(node)
        else:
            materialise(node, folder / name)


def _key(tree: Tree) -> object:
    return tuple((name, node if isinstance(node, bytes | str) else _key(node)) for name, node in tree.items())


def _apply(places: list[tuple[Folder, str, Folder | File | None]], *, safe: bool) -> None:
    for folder, name, node in places:
        names = folder.safe if safe else folder.names
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def _tree(top: Folder, chosen: list[Change], unsafe_share: int) -> Tree:
    changed: dict[Folder, dict[str, Folder | File]] = {}
    for change in chosen:
        for folder, name, node in change.places:
            names = changed.setdefault(folder, dict(folder.safe))
            if node is None:
                names.pop(name, None)
            else:
                names[name] = node

    def walk(folder: Folder) -> Tree:
        names = changed.get(folder, folder.safe)
        return {name: walk(node) if isinstance(node, Folder) else content(node) for name, node in sorted(names.items())}

    def content(file: File) -> bytes | str:
        if isinstance(file, Link):
            return file.target
        return file.content[: file.safe + (len(file.content) - file.safe) * unsafe_share // 2]

    return walk(top)
