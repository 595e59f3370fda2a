"""However a run saves, and however often, it trains the same."""

from __future__ import annotations

import pytest

from milepost.recipes import full
from milepost.recipes.config_files import load_config
from tests.recipes.runs import first_difference, logged, run, run_until_crash, saved_steps

MODES = {
    "overlapped": {"checkpoint__capture": "overlapped"},
    "immediate": {"checkpoint__capture": "immediate"},
    "blocking": {"checkpoint__background": False},
    "skipping": {"checkpoint__when_busy": "skip"},
}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    assert run(folder) == 0
    return folder


@pytest.mark.parametrize("mode", MODES)
def test_case_20_a_run_that_dies_and_goes_on_is_the_same_in_every_mode(tmp_path, unbroken, mode):
    for update in (5, 6):
        run_until_crash(tmp_path / "run", update, **MODES[mode])
    assert run(tmp_path / "run", **MODES[mode]) == 0
    assert first_difference(tmp_path / "run" / "step_12", unbroken / "step_12") is None
    assert logged(tmp_path / "run") == logged(unbroken)


@pytest.mark.parametrize("mode", MODES)
def test_a_save_at_every_step_of_the_quickstart_changes_nothing(tmp_path, mode):
    settings = [f"{name.replace('__', '.')}={value}" for name, value in MODES[mode].items()]
    common = [
        "max_steps=14",
        "validate_every_n_train_steps=100",
        "~keep_best_n_checkpoints",
        "keep_last_n_checkpoints=-1",
    ]
    for name, every in (("often", 1), ("never", 1000)):
        overrides = [*common, *settings, f"output_dir={tmp_path / name}", f"save_every_n_train_steps={every}"]
        assert full.main(load_config("quickstart", overrides), "quickstart") == 0
    assert saved_steps(tmp_path / "never") == [14]
    assert mode == "skipping" or saved_steps(tmp_path / "often") == list(range(1, 15))
    often, never = (tmp_path / name / "step_14" for name in ("often", "never"))
    assert first_difference(often, never) is None
