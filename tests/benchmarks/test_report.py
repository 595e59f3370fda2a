"""The report: what is not there is said, and nothing is wider than a terminal."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json

import pytest
from rich.console import Console

from benchmarks import report
from benchmarks.catalog import BY_NAME, CAPTURE, METHODS
from benchmarks.figures import Samples
from benchmarks.rounds import OTHERS, Plan
from benchmarks.saving import arguments, chosen_names

KNOWN = [*BY_NAME, *OTHERS]


def full_samples(rounds: int) -> Samples:
    """As a run would leave them, made up."""
    samples = Samples()
    for at in range(rounds):
        samples.add("limit.copy", at, 0.3)
        samples.add("limit.disk", at, 3.0 + at / 100)
        for entry in METHODS:
            samples.add(f"durable.{entry.name}", at, 3.3)
            if entry.background:
                samples.add(f"held.{entry.name}", at, 0.001 * at)
                samples.add(f"lost.{entry.name}", at, 1.5 - at)
    return samples


def printed(samples: Samples, tmp_path) -> list[str]:
    stream = io.StringIO()
    facts = report.environment(tmp_path, 10**9, 588)
    report.show(Console(file=stream, width=report.WIDTH), samples, facts, BY_NAME)
    return stream.getvalue().splitlines()


def test_a_report_fits_and_says_what_was_not_measured(tmp_path):
    lines = printed(full_samples(15), tmp_path)
    assert max(map(len, lines)) <= 120
    text = "\n".join(lines)
    for entry in METHODS:
        assert entry.label in text
    assert "not measured" in text
    assert "met" in text


def test_a_report_of_nothing_is_a_report(tmp_path):
    assert printed(Samples(), tmp_path)


def test_what_is_not_installed_and_what_failed_have_rows_that_say_so(tmp_path, monkeypatch):
    absent = dataclasses.replace(BY_NAME["lightning-async"], package="no_such_package_anywhere")
    monkeypatch.setattr(report, "METHODS", [absent, BY_NAME["dcp"]])
    samples = Samples()
    samples.failures["dcp"] = "OSError: no"
    text = "\n".join(printed(samples, tmp_path))
    assert "not installed" in text
    assert "failed" in text
    assert "FAILED dcp: OSError: no" in text


def test_the_json_has_every_sample(tmp_path):
    samples = full_samples(15)
    written = json.loads(json.dumps(report.as_json(samples, report.environment(tmp_path, 1, 1), {"pairs": 15})))
    assert written["samples"]["limit.disk"]["14"] == pytest.approx(3.14)
    blocking = next(row for row in written["figures"] if row["title"].startswith("blocking save: durable"))
    assert len(blocking["samples"]) == 15
    assert blocking["verdict"] == "met"
    assert blocking["coverage"] == pytest.approx(0.9648, abs=1e-4)


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        ("", set(KNOWN)),
        ("dcp,torch-save", {"dcp", "torch-save"}),
        (CAPTURE, {CAPTURE, "milepost-overlapped"}),
    ],
)
def test_names_choose_what_is_measured(only, expected):
    assert chosen_names(only, KNOWN) == expected


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"--only dcpp: not known; the names are bare-writer, "):
        chosen_names("dcpp", KNOWN)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], {"pairs": 15, "peer_pairs": 7, "alone_pairs": 15, "size_gb": 1.4}),
        (["--pairs", "20"], {"pairs": 20, "alone_pairs": 20}),
        (["--quick"], {"pairs": 2, "peer_pairs": 1, "alone_pairs": 1, "size_gb": 0.06}),
        (["--quick", "--size-gb", "0.5"], {"pairs": 2, "size_gb": 0.5}),
    ],
)
def test_quick_changes_only_what_was_not_given(given, expected):
    chosen = vars(arguments(given))
    assert {name: chosen[name] for name in expected} == expected


@pytest.mark.parametrize(("pairs", "count"), [(15, 7), (15, 15), (15, 0), (2, 1), (3, 7)])
def test_rounds_with_peers_are_as_many_as_asked_and_spread(pairs, count, tmp_path):
    plan = Plan(tmp_path, 1, pairs, count, 0, 0, 1, 0.0, frozenset())
    taken = [at for at in range(pairs) if plan.takes(at, count)]
    assert len(taken) == min(pairs, count)
    gaps = [later - earlier for earlier, later in itertools.pairwise(taken)]
    assert not gaps or max(gaps) - min(gaps) <= 1
