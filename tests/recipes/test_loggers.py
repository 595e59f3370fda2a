"""metrics.jsonl: every logged step once, whatever the run went through."""

from __future__ import annotations

import json
import math

import pytest

from milepost.recipes.loggers import JsonLinesLogger


def steps(path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_lines_after_the_resumed_step_are_replaced(tmp_path):
    log = JsonLinesLogger(tmp_path)
    log.go_on_after(0)
    for step in range(1, 8):
        log.log(step, {"loss": step / 2})
    log.close()
    again = JsonLinesLogger(tmp_path)
    again.go_on_after(4)
    assert steps(log.path) == [1, 2, 3, 4]
    again.log(5, {"loss": 0.0})
    again.close()
    assert steps(log.path) == [1, 2, 3, 4, 5]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


@pytest.mark.parametrize("cut", range(1, 25))
def test_a_torn_last_line_goes(tmp_path, cut):
    log = JsonLinesLogger(tmp_path)
    log.go_on_after(0)
    log.log(1, {"loss": 0.25})
    log.log(2, {"loss": 0.125})
    log.close()
    content = log.path.read_bytes()
    log.path.write_bytes(content[:-cut])
    again = JsonLinesLogger(tmp_path)
    again.go_on_after(1)
    again.log(2, {"loss": 0.125})
    again.close()
    assert log.path.read_bytes() == content


def test_lines_of_others_stay(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('a note\n{"run": "first"}\n{"step": 9}\n')
    log = JsonLinesLogger(tmp_path)
    log.go_on_after(3)
    log.close()
    assert path.read_text() == 'a note\n{"run": "first"}\n'


def test_numbers_that_json_has_not_are_texts(tmp_path):
    log = JsonLinesLogger(tmp_path)
    log.go_on_after(0)
    log.log(1, {"loss": math.nan, "grad_norm": math.inf})
    log.close()
    assert json.loads(log.path.read_text()) == {"step": 1, "loss": "nan", "grad_norm": "inf"}


def test_logging_before_it_is_known_where_to_go_on_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="go_on_after"):
        JsonLinesLogger(tmp_path).log(1, {})
