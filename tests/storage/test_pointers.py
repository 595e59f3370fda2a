"""``latest`` and ``best``: replaced atomically, followed where somebody names them, and never somebody else's."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from milepost.storage.backend import Backend
from milepost.storage.catalog import read_catalog
from milepost.storage.layout import RunFolder
from milepost.storage.pointers import follow, point, read_pointer
from milepost.storage.sweep import recover
from tests.faults import FaultyBackend, UnsyncedBackend, count_operations, in_child
from tests.storage.samples import save, steps


class WithoutLinks(UnsyncedBackend):
    """A file system that has no symbolic links."""

    def link(self, path: Path, target: str) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), str(path))


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = tmp_path / "run"
    (folder / ".milepost").mkdir(parents=True)
    for step in (2, 4):
        save(folder, step)
    return RunFolder(folder)


@pytest.mark.parametrize("backend", [UnsyncedBackend(), WithoutLinks()], ids=["links", "text files"])
def test_a_pointer_names_a_checkpoint_and_is_followed(run: RunFolder, backend: Backend) -> None:
    for name in ("step_2", "step_4"):
        point(run, backend, "latest", name)
        assert read_pointer(run.path / "latest") == name
        assert follow(run.path / "latest") == run.path / name
    assert steps(run.path) == [2, 4] and not read_catalog(run.path).ignored
    assert os.listdir(run.control) == ["edits"]
    assert count_operations(lambda backend: point(run, backend, "latest", "step_4")) == []
    assert (run.path / "latest").is_symlink() is not isinstance(backend, WithoutLinks)


def test_a_link_is_relative_so_that_a_folder_can_be_moved(run: RunFolder, tmp_path: Path) -> None:
    point(run, UnsyncedBackend(), "best", "step_4")
    moved = run.path.rename(tmp_path / "moved")
    assert (moved / "best" / "milepost.json").is_file()


@pytest.mark.parametrize("fault", ["kill", errno.ENOSPC])
@pytest.mark.parametrize("inner", [UnsyncedBackend(), WithoutLinks()], ids=["links", "text files"])
def test_whatever_happens_it_names_the_old_or_the_new(run: RunFolder, tmp_path: Path, inner, fault) -> None:
    point(run, inner, "latest", "step_2")
    faultless = FaultyBackend(inner)
    copy = RunFolder(Path(shutil.copytree(run.path, tmp_path / "counted", symlinks=True)))
    point(copy, faultless, "latest", "step_4")
    for at in range(1, len(faultless.names) + 1):
        cut = RunFolder(Path(shutil.copytree(run.path, tmp_path / str(at), symlinks=True)))
        backend = FaultyBackend(inner, at=at, fault=fault, for_good=True, torn=True)
        if fault == "kill":
            assert in_child(lambda cut=cut, backend=backend: point(cut, backend, "latest", "step_4")) == -9
        elif backend.names[-1:] != ["link"]:
            with pytest.raises(OSError):
                point(cut, backend, "latest", "step_4")
        assert read_pointer(cut.path / "latest") in ("step_2", "step_4")
        recover(cut, UnsyncedBackend())
        assert os.listdir(cut.control) == ["edits"]


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.write_text("my notes"),
        lambda path: path.write_text("step_04\n"),
        lambda path: path.mkdir(),
        lambda path: path.symlink_to("/somewhere/else"),
        lambda path: path.symlink_to("../run/step_2"),
    ],
)
def test_what_somebody_else_put_there_stays(run: RunFolder, make) -> None:
    make(run.path / "best")
    before = os.lstat(run.path / "best")
    for target in ("step_4", None):
        point(run, UnsyncedBackend(), "best", target)
    assert os.lstat(run.path / "best") == before
    assert read_pointer(run.path / "best") is None


def test_one_that_names_what_is_gone_goes_too(run: RunFolder) -> None:
    point(run, UnsyncedBackend(), "best", "step_2")
    point(run, UnsyncedBackend(), "best", None)
    assert read_pointer(run.path / "best") == "step_2"
    shutil.rmtree(run.path / "step_2")
    point(run, UnsyncedBackend(), "best", None)
    assert not os.path.lexists(run.path / "best")


def test_only_pointers_names_are_followed_as_text(run: RunFolder) -> None:
    (run.path / "other").write_text("step_2\n")
    assert follow(run.path / "other") == run.path / "other"
