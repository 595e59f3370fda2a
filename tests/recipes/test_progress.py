"""What is shown on a terminal, and elsewhere."""

from __future__ import annotations

import io
import logging

from rich.console import Console

from milepost.recipes.progress import ProgressReport

NUMBERS = {"loss": 2.5, "lr": 0.001, "epoch": 0.5, "tokens_per_second": 1234.0}


def shown(*, terminal: bool) -> str:
    output = io.StringIO()
    with ProgressReport(Console(file=output, force_terminal=terminal, width=120)) as report:
        report.begin(10, 20)
        report.show(11, NUMBERS, next_save=15)
        logging.getLogger("milepost").info("saved step_11")
        logging.getLogger("milepost").warning("passed over step_9")
        report.show(20, NUMBERS, next_save=20)
    return output.getvalue()


def test_plain_lines_where_there_is_no_terminal():
    assert shown(terminal=False).splitlines() == [
        "step 11/20  loss 2.5000  lr 1.00e-03  1,234 tokens/s  next save 15",
        "saved step_11",
        "WARNING: passed over step_9",
        "step 20/20  loss 2.5000  lr 1.00e-03  1,234 tokens/s",
    ]


def test_a_bar_on_a_terminal():
    text = shown(terminal=True)
    assert "step 20/20" in text and "loss 2.5000" in text and "saved step_11" in text
    assert "\x1b[" in text


def test_tokens_per_second_leave_out_what_is_no_training(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("milepost.recipes.progress.time.perf_counter", lambda: now[0])
    report = ProgressReport(Console(file=io.StringIO()))
    report.begin(0, 10)
    report.consumed(100)
    with report.clock_stopped():
        now[0] += 50
    now[0] += 4
    assert report.speed() == 25.0


def test_the_logger_is_as_it_was_afterwards():
    logger = logging.getLogger("milepost")
    before = (list(logger.handlers), logger.level)
    shown(terminal=False)
    assert (list(logger.handlers), logger.level) == before
