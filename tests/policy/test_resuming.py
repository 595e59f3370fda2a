"""Resuming: which checkpoints are tried, and in which order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.policy.resuming import resume_candidates
from milepost.records import Level
from tests.policy.histories import checkpoint, histories


def test_resuming_tries_the_newest_commit_first_and_full_ones_only():
    history = [checkpoint(5, 1), checkpoint(8, 2, level=Level.WEIGHTS), checkpoint(3, 3)]
    assert [each.step for each in resume_candidates(history, "auto")] == [3, 5]
    assert [each.step for each in resume_candidates(history, 5)] == [5]
    assert resume_candidates(history, np.int64(5)) == (history[0],)
    assert resume_candidates(history, 8) == ()
    assert resume_candidates([], "auto") == ()


def test_case_06_resuming_goes_by_commits_not_by_names():
    assert [each.step for each in resume_candidates([checkpoint(9), checkpoint(10), checkpoint(2)], "auto")] == [
        10,
        9,
        2,
    ]


def test_after_a_rewind_the_newest_commit_is_tried_first():
    history = [checkpoint(5000, 10), checkpoint(400, 11)]
    assert resume_candidates(history, "auto")[0].step == 400


@pytest.mark.parametrize("source", ["latest", True, 5.0, None])
def test_a_source_that_is_neither_auto_nor_a_step_is_refused(source):
    with pytest.raises(TypeError, match="source must be 'auto', 'healthy' or a step"):
        resume_candidates([checkpoint(1)], source)


@given(histories(), st.data())
def test_resuming_does_not_depend_on_the_order_of_the_catalog(history, data):
    shuffled = data.draw(st.permutations(history))
    assert list(resume_candidates(shuffled, "auto")) == [each for each in history[::-1] if each.resumable]
