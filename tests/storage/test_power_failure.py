"""Whenever the power fails, the older checkpoint is whole, and nothing incomplete passes for a checkpoint."""

from __future__ import annotations

import contextlib
import itertools
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from milepost.storage.backend import Backend
from milepost.storage.catalog import read_catalog
from milepost.storage.commit import rewrite_manifest
from milepost.storage.layout import MANIFEST, RunFolder
from milepost.storage.levels import demote
from milepost.storage.sweep import prune, recover, release_superseded, supersede, superseded_serial, sweep_trash
from milepost.storage.trash import discard, read_trash, undelete
from tests.faults import FaultyBackend, Killed, UnsyncedBackend
from tests.power import PowerModel, Tree, materialise
from tests.storage.samples import OTHER_RUN, assert_sound, assert_whole, debris, save


def _commit(folder: Path, backend: Backend) -> None:
    save(folder, 4, backend)


def _replace(folder: Path, backend: Backend) -> None:
    save(folder, 4, backend, serial=6, assets={})
    sweep_trash(RunFolder(folder), backend)


def _replace_with_a_full_trash(folder: Path, backend: Backend) -> None:
    prune(RunFolder(folder), backend, read_catalog(folder).checkpoints[:1])
    _replace(folder, backend)


def _prune(folder: Path, backend: Backend) -> None:
    prune(RunFolder(folder), backend, read_catalog(folder).checkpoints[1:])
    sweep_trash(RunFolder(folder), backend)


def _rewind(folder: Path, backend: Backend) -> None:
    supersede(RunFolder(folder), backend, read_catalog(folder).checkpoints[1:])
    save(folder, 3, backend, serial=8, assets={})
    release_superseded(RunFolder(folder), backend, 8)
    sweep_trash(RunFolder(folder), backend)


def _record_metrics(folder: Path, backend: Backend) -> None:
    rewrite_manifest(backend, folder / "step_2", lambda manifest: replace(manifest, metrics={"loss": 0.5}))


def _demote(folder: Path, backend: Backend) -> None:
    demote(RunFolder(folder), backend, read_catalog(folder).checkpoints[0])


def _undelete(folder: Path, backend: Backend) -> None:
    discard(RunFolder(folder), backend, [(read_catalog(folder).checkpoints[0], "a rule")], now=1.0, grace=2.0**40)
    undelete(RunFolder(folder), backend, 2, now=2.0)


# What is there before, what is done, and the steps that must be whole whatever happens.
STORIES: dict[str, tuple[list[dict[str, object]], Callable[[Path, Backend], None], list[int]]] = {
    "commit": ([{"step": 2}], _commit, [2]),
    "replace our own": ([{"step": 2}, {"step": 4}], _replace, [2, 4]),
    "replace another run's": ([{"step": 2}, {"step": 4, "run_id": OTHER_RUN}], _replace, [2, 4]),
    "replace with a full trash": ([{"step": 1}, {"step": 2}, {"step": 4}], _replace_with_a_full_trash, [2, 4]),
    "prune": ([{"step": 2}, {"step": 4}, {"step": 6}], _prune, [2]),
    "rewind": ([{"step": 2}, {"step": 4}, {"step": 6}], _rewind, [2]),
    "record metrics": ([{"step": 2}], _record_metrics, [2]),
    "demote": ([{"step": 2}, {"step": 4}], _demote, [4]),
    "undelete": ([{"step": 2}, {"step": 4}], _undelete, [4]),
}


@pytest.mark.parametrize("story", STORIES)
def test_after_a_power_failure_at_any_moment_the_older_checkpoint_is_whole(tmp_path: Path, story: str) -> None:
    before, action, survivors = STORIES[story]
    folder = _prepared(tmp_path, before)
    model = PowerModel(folder)
    action(folder, model)
    for number, tree in enumerate(model.trees.values()):
        _check(tree, tmp_path / str(number), survivors)


@pytest.mark.parametrize("story", STORIES)
def test_after_a_kill_a_recovery_and_a_power_failure_the_older_checkpoint_is_whole(tmp_path: Path, story: str) -> None:
    before, action, survivors = STORIES[story]
    prepared = _prepared(tmp_path, before)
    trees = {}
    for at in itertools.count(1):
        folder = _copy(prepared, tmp_path / f"killed at {at}")
        model = PowerModel(folder)
        try:
            action(folder, FaultyBackend(model, at=at, fault="die"))
        except Killed:
            model.trees.clear()
            recover(RunFolder(folder), model)
            trees.update({_likeness(tree): tree for tree in model.trees.values()})
        else:
            break
    assert at > 4
    for number, tree in enumerate(trees.values()):
        _check(tree, tmp_path / str(number), survivors)


@pytest.mark.parametrize("story", STORIES)
def test_after_a_failed_operation_and_a_power_failure_the_older_checkpoint_is_whole(tmp_path: Path, story: str) -> None:
    before, action, survivors = STORIES[story]
    prepared = _prepared(tmp_path, before)
    unfailed = PowerModel(_copy(prepared, tmp_path / "unfailed"))
    action(unfailed.root, unfailed)
    # What can also come of it when nothing fails is the first test's.
    known = {_likeness(tree) for tree in unfailed.trees.values()}
    trees = {}
    for at in itertools.count(1):
        folder = _copy(prepared, tmp_path / f"failed at {at}")
        model = PowerModel(folder)
        backend = FaultyBackend(model, at=at)
        with contextlib.suppress(OSError):
            action(folder, backend)
        if len(backend.names) < at:
            break
        sweep_trash(RunFolder(folder), model)
        trees.update({_likeness(tree): tree for tree in model.trees.values()})
    assert at > 4
    for number, tree in enumerate(tree for likeness, tree in trees.items() if likeness not in known):
        _check(tree, tmp_path / str(number), survivors)


def test_none_gives_up_its_training_state_for_one_that_is_not_durable(tmp_path: Path) -> None:
    prepared = _prepared(tmp_path, [{"step": 2}])
    tried = 0
    for at in itertools.count(1):
        folder = _copy(prepared, tmp_path / f"killed at {at}")
        model = PowerModel(folder)
        try:
            _commit(folder, FaultyBackend(model, at=at, fault="die"))
        except Killed:
            recover(RunFolder(folder), model)
        else:
            break
        found = read_catalog(folder)
        if found.newest is None or found.newest.step != 4:
            continue
        tried += 1
        model.trees.clear()
        demote(RunFolder(folder), model, found.checkpoints[0])
        for number, tree in enumerate(model.trees.values()):
            materialise(tree, tmp_path / f"{at} {number}")
            left = assert_sound(tmp_path / f"{at} {number}").checkpoints
            assert any(checkpoint.resumable for checkpoint in left)
    assert tried


@pytest.mark.parametrize(
    ("action", "left"),
    [
        (_commit, [2, 3, 4]),
        (lambda folder, backend: prune(RunFolder(folder), backend, read_catalog(folder).checkpoints[1:]), [2]),
        (lambda folder, backend: supersede(RunFolder(folder), backend, read_catalog(folder).checkpoints[1:]), [2]),
        (_record_metrics, [2, 3]),
        (_demote, [2, 3]),
        (_undelete, [2, 3]),
    ],
    ids=["a commit", "pruning", "a rewind", "a late score", "a demotion", "an undeletion"],
)
def test_what_has_returned_survives_a_power_failure(tmp_path: Path, action: Any, left: list[int]) -> None:
    model = PowerModel(_prepared(tmp_path, [{"step": 2}, {"step": 3}]))
    action(model.root, model)
    model.trees.clear()
    model.note()
    for number, tree in enumerate(model.trees.values()):
        materialise(tree, tmp_path / str(number))
        recover(RunFolder(tmp_path / str(number)), UnsyncedBackend())
        catalog = assert_sound(tmp_path / str(number))
        assert [checkpoint.step for checkpoint in catalog.checkpoints] == left
        assert superseded_serial(RunFolder(tmp_path / str(number))) == superseded_serial(RunFolder(model.root))
        assert catalog.checkpoints[0].metrics == ({"loss": 0.5} if action is _record_metrics else {})
        assert catalog.checkpoints[0].resumable is (action is not _demote)


def test_the_model_loses_what_was_not_synced(tmp_path: Path) -> None:
    model = PowerModel(tmp_path)
    file = model.create(tmp_path / "file")
    file.write(b"ab")
    assert [tree for tree in model.trees.values()] == [{}, {"file": b""}, {"file": b"a"}, {"file": b"ab"}]
    file.sync()
    model.trees.clear()
    model.sync_folder(tmp_path)
    assert list(model.trees.values()) == [{"file": b"ab"}]
    file.close()


def _copy(source: Path, target: Path) -> Path:
    return Path(shutil.copytree(source, target))


def _prepared(tmp_path: Path, before: list[dict[str, object]]) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    for given in before:
        save(folder, **{"assets": {}, **given})  # type: ignore[arg-type]
    return folder


def _likeness(tree: Tree) -> object:
    """The same for trees that differ in random names, in times, or in an unfinished folder's content only."""

    def shape(tree: Tree) -> object:
        return tuple((re.sub(r"-[0-9a-f]{8}$", "", name), content(name, node)) for name, node in tree.items())

    def content(name: str, node: Tree | bytes | str) -> object:
        if isinstance(node, dict):
            return () if ".staging-" in name else shape(node)
        if name in (MANIFEST, "log.jsonl"):
            assert isinstance(node, bytes)
            return node.endswith(b"\n")
        return node

    return shape(tree)


def _check(tree: Tree, folder: Path, survivors: list[int]) -> None:
    materialise(tree, folder)
    catalog = assert_sound(folder)
    # What a failed replacement moved aside may be there only after recovery; the newest of the others always is.
    assert catalog.at(survivors[0]) is not None
    recover(RunFolder(folder), UnsyncedBackend())
    assert_sound(folder)
    left = [name for name in debris(folder) if name not in (".superseded", ".trash") and ".displaced-" not in name]
    assert left == [] and all(entry.until is not None for entry in read_trash(RunFolder(folder)))
    for step in survivors:
        assert_whole(folder, step)
    shutil.rmtree(folder)
