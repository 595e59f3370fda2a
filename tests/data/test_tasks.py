"""The quickstart's tasks: the same everywhere, right, and never in training and validation at once."""

from __future__ import annotations

import hashlib
import json

import pytest

from milepost.data import generate_tasks, split_tasks


def test_the_tasks_are_the_same_everywhere() -> None:
    tasks = generate_tasks(600, seed=0)
    assert (
        hashlib.sha256(json.dumps(tasks).encode()).hexdigest()
        == "4119f83632fe49b434874bec45bf669e78d00a6e88253ed9a7f06e6413818d52"
    )
    assert generate_tasks(600, seed=1) != tasks


def test_all_tasks_are_different_short_texts() -> None:
    with pytest.raises(ValueError, match=r"ask for 1 to \d+") as caught:
        generate_tasks(10**9)
    there_are = int(str(caught.value).split(" to ")[1].split(",")[0])
    tasks = generate_tasks(there_are)
    assert there_are > 1500
    assert len({(task["instruction"], task["input"]) for task in tasks}) == there_are
    assert all(task.keys() == {"instruction", "input", "output"} for task in tasks)
    assert all(isinstance(text, str) and len(text) < 60 for task in tasks for text in task.values())
    assert all(task["output"] and task["instruction"] for task in tasks)


@pytest.mark.parametrize(
    ("instruction", "given", "output"),
    [
        ("Copy the word.", "cat", "cat"),
        ("Write the word backwards.", "dog", "god"),
        ("Write the word in capital letters.", "sun", "SUN"),
        ("Spell the word.", "map", "m-a-p"),
        ("How many letters does the word have?", "horse", "5"),
        ("What is the first letter?", "tree", "t"),
        ("What is the last letter?", "king", "g"),
        ("Write the plural.", "box", "boxes"),
        ("Write the plural.", "leaf", "leaves"),
        ("What is the sum?", "7 + 5", "12"),
        ("Which number comes next?", "9", "10"),
        ("Which number comes before?", "20", "19"),
        ("Which is larger?", "3 or 8", "8"),
        ("Sort the digits.", "5 2 3", "2 3 5"),
        ("Is 4 more than 5?", "", "no"),
        ("What is the opposite of hot?", "", "cold"),
        ("What colour is this?", "grass", "green"),
    ],
)
def test_answers_are_right(instruction: str, given: str, output: str) -> None:
    assert {"instruction": instruction, "input": given, "output": output} in ALL


ALL = generate_tasks(1684)


def test_a_few_tasks_are_of_many_kinds() -> None:
    assert len({task["instruction"] for task in generate_tasks(40)}) >= 15


@pytest.mark.parametrize(("count", "validation"), [(600, 60), (100, 1), (2, 1), (50, 49)])
def test_no_question_is_in_training_and_validation(count: int, validation: int) -> None:
    tasks = generate_tasks(count)
    training, held = split_tasks(tasks, validation)
    assert (len(training), len(held)) == (count - validation, validation)
    assert sorted(map(str, [*training, *held])) == sorted(map(str, tasks))
    asked = {(task["instruction"], task["input"]) for task in training}
    assert not any((task["instruction"], task["input"]) in asked for task in held)


def test_a_question_that_comes_twice_stays_on_one_side() -> None:
    tasks = [*generate_tasks(20), *generate_tasks(20)]
    training, held = split_tasks(tasks, 5)
    assert (len(training), len(held)) == (30, 10)
    assert not [task for task in held if task in training]


@pytest.mark.parametrize("validation", [0, -1, 20, 21])
def test_both_sides_need_rows(validation: int) -> None:
    with pytest.raises(ValueError, match=f"validation={validation}"):
        split_tasks(generate_tasks(20), validation)


@pytest.mark.parametrize("count", [0, -1])
def test_a_count_must_be_positive(count: int) -> None:
    with pytest.raises(ValueError, match=f"count={count}"):
        generate_tasks(count)
