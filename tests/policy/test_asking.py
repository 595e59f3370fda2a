"""Rules that answer people: reasons name what they answer, and wrong signals are refused where they are written."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from milepost.policy.asking import (
    OnRequest,
    OnSignal,
    answer_to,
    answered_requests,
    signals_that_save,
    takes_requests,
)
from milepost.policy.saving import AnyOf, EverySteps, as_schedule, reasons_to_save
from milepost.records import Checkpoint, Moment

TWO = ("0123abcd", "89abcdef")


def checkpoint(*reasons: str) -> Checkpoint:
    return Checkpoint(1, Path("step_1"), 1, "run", "id", 0.0, 1, reasons=reasons)


@pytest.mark.parametrize(
    ("rule", "moment", "reason"),
    [
        (OnRequest(), Moment(3), None),
        (OnRequest(), Moment(3, requests=TWO[:1]), "save-now (0123abcd)"),
        (OnRequest(), Moment(3, requests=TWO), "save-now (0123abcd, 89abcdef)"),
        (OnSignal("SIGUSR2"), Moment(3), None),
        (OnSignal("SIGUSR2"), Moment(3, signal="SIGUSR2"), "SIGUSR2"),
        (OnSignal("SIGUSR2"), Moment(3, signal="SIGUSR1"), None),
        (OnSignal(signal.SIGUSR1, "SIGUSR2"), Moment(3, signal="SIGUSR1"), "SIGUSR1"),
    ],
)
def test_a_rule_answers_what_it_is_asked(rule: Any, moment: Moment, reason: str | None):
    assert rule.reason_to_save(moment) == reason


def test_they_stand_beside_other_rules():
    several = as_schedule([EverySteps(5), AnyOf((OnRequest(), OnSignal("SIGUSR2")))])
    assert takes_requests(several) and not takes_requests(as_schedule(EverySteps(5)))
    assert signals_that_save(several) == ("SIGUSR2",)
    assert reasons_to_save(several, Moment(5, 4, requests=TWO[:1], signal="SIGUSR2")) == (
        "every 5 steps",
        "save-now (0123abcd)",
        "SIGUSR2",
    )


def test_a_checkpoint_says_which_requests_it_answers():
    answer = checkpoint("every 5 steps", "save-now (0123abcd, 89abcdef)")
    assert answered_requests(answer) == {*TWO}
    assert answered_requests(checkpoint("every 5 steps", "save-now (nothing)", "not save-now (0123abcd)")) == set()
    assert answer_to(TWO[1], [checkpoint(), answer]) is answer
    assert answer_to("00000000", [checkpoint(), answer]) is None


@pytest.mark.parametrize(
    ("names", "error", "text"),
    [
        ((), ValueError, "name at least one signal"),
        (("SIGTERM",), ValueError, "saves and ends a run anyway"),
        ((signal.SIGINT,), ValueError, "saves and ends a run anyway"),
        (("SIGKILL",), ValueError, "no such signal"),
        (("SIGNONSENSE",), ValueError, "no such signal"),
        (("usr1",), ValueError, "no such signal"),
        ((12,), TypeError, "a signal is named"),
    ],
)
def test_a_signal_that_cannot_be_answered_is_refused(names, error, text):
    with pytest.raises(error, match=text):
        OnSignal(*names)
