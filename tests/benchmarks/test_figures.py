"""What samples are said to mean: intervals that hold what they promise, and verdicts that do not overreach."""

from __future__ import annotations

import itertools
import math

import pytest

from benchmarks.figures import Figure, Interval, Samples, interval, promises, ratio, verdict


@pytest.mark.parametrize(
    ("n", "low", "high", "coverage"),
    [
        (1, 1, 1, 0.0),
        (2, 1, 2, 0.5),
        (5, 1, 5, 0.9375),
        (6, 1, 6, 0.96875),
        (8, 1, 8, 0.9921875),
        (9, 2, 8, 0.9609375),
        (15, 4, 12, 0.96484375),
        (20, 6, 15, 0.95861053466796875),
    ],
)
def test_the_interval_is_between_the_order_statistics_of_the_sign_test(n, low, high, coverage):
    found = interval([float(value) for value in reversed(range(1, n + 1))])
    assert (found.low, found.high, found.n) == (low, high, n)
    assert found.coverage == pytest.approx(coverage)
    assert found.wide_enough == (n >= 6)


@pytest.mark.parametrize("n", [6, 7, 9, 12])
def test_the_interval_holds_the_true_median_as_often_as_it_says(n):
    # A sample is below or above the true median with equal chance, and nothing else matters: try all ways.
    held = 0
    for signs in itertools.product((-1.0, 1.0), repeat=n):
        found = interval(signs)
        held += found.low < 0 < found.high
    assert held / 2**n == pytest.approx(interval([0.0] * n).coverage)


def test_an_interval_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one sample"):
        interval([])


@pytest.mark.parametrize(
    ("low", "high", "coverage", "said"),
    [
        (0.9, 1.0, 0.96, "met"),
        (0.9, 1.01, 0.96, "undecided"),
        (1.0, 1.01, 0.96, "undecided"),
        (1.01, 1.2, 0.96, "missed"),
        (0.1, 0.2, 0.9375, "too few pairs"),
        (-math.inf, math.inf, 0.96, "undecided"),
        (math.inf, math.inf, 0.96, "missed"),
    ],
)
def test_a_target_is_met_only_by_the_whole_interval(low, high, coverage, said):
    assert verdict(Interval((low + high) / 2, low, high, coverage, 15), 1.0) == said


@pytest.mark.parametrize(
    ("above", "below", "expected"),
    [
        (3.0, 2.0, 1.5),
        (-1.0, 2.0, -0.5),
        (0.1, 0.0, math.inf),
        (0.0, 0.0, -math.inf),
        (-1.0, -0.5, -math.inf),
        (-0.5, -1.0, math.inf),
    ],
)
def test_a_divisor_that_is_noise_keeps_the_pair_on_its_side_of_the_target(above, below, expected):
    assert ratio(above, below, target=1.25) == expected


def test_ratios_are_of_the_rounds_that_have_both():
    samples = Samples()
    for at, value in enumerate((2.0, 4.0, 6.0)):
        samples.add("durable", at, value)
    samples.add("disk", 2, 3.0)
    samples.add("disk", 0, 1.0)
    samples.add("disk", 7, 9.0)
    assert samples.ratios("durable", "disk") == [2.0, 2.0]
    assert samples.of("disk") == [1.0, 3.0, 9.0]
    assert samples.ratios("durable", "nothing") == []


def test_a_figure_without_a_divisor_is_its_samples():
    samples = Samples()
    samples.add("memory", 0, 12.0)
    assert Figure("memory", "memory", 64).samples(samples) == [12.0]


def test_every_peer_is_promised_to_lose_more_training():
    titles = [figure.title for figure in promises({"a": "Tool A", "b": "Tool B"})]
    assert [title for title in titles if "Tool" in title] == [
        "training lost, overlapped ÷ Tool A",
        "training lost, overlapped ÷ Tool B",
    ]
