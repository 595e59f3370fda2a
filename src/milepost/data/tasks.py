"""A few thousand short instruction tasks that a very small model can learn: the data of the quickstart.

Everything is enumerated and then picked in the order of ``global_order``, so the same count and seed give the same
rows everywhere. Words are few and short, so that a vocabulary of some hundred tokens covers them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import permutations, zip_longest

from milepost.data.order import global_order

Task = dict[str, str]

_NOUNS = (
    "ant apple ball bed bell bird boat book box boy bread bus cake car cat chair city cow cup day desk dog door "
    "duck egg fan farm fish flag fox frog game girl goat hand hat hill home horse ice jam key king lamp leaf lion "
    "map milk moon mouse nest night nut park pen pig pot rain ring road rose sand sea ship shoe sky snow star sun "
    "tent toy train tree van wall wind wolf"
)
WORDS = tuple(_NOUNS.split())

OPPOSITES = (
    "big small, hot cold, up down, day night, fast slow, old new, open closed, wet dry, long short, high low, happy "
    "sad, early late, full empty, hard soft, light dark, left right, near far, rich poor, strong weak, thick thin, "
    "yes no, in out, on off, black white, good bad, loud quiet, first last, before after"
)

COLOURS = {
    "red": "a tomato, blood, a rose, a fire truck, a cherry, a strawberry",
    "blue": "the sky, the sea, a whale, a sapphire, blue paint",
    "green": "grass, a leaf, a frog, a pea, a cucumber, a lime",
    "yellow": "the sun, a lemon, a banana, corn, butter, a chick",
    "white": "snow, milk, salt, a cloud, rice, a swan",
    "black": "coal, night, a raven, tar, ink, a panther",
    "orange": "a carrot, a pumpkin, an orange, a fox, a tiger",
}

IRREGULAR = {"leaf": "leaves", "mouse": "mice", "wolf": "wolves", "city": "cities", "fish": "fish"}

UNCOUNTABLE = frozenset({"bread", "ice", "jam", "milk", "rain", "sand", "snow"})


def generate_tasks(count: int, seed: int = 0) -> list[Task]:
    """``count`` different rows of ``{"instruction", "input", "output"}``, the kinds of task mixed evenly.

    Raises ValueError where there are not that many.
    """
    kinds = [_shuffled(list(kind), seed, number) for number, kind in enumerate(_kinds())]
    mixed = [task for turn in zip_longest(*kinds) for task in turn if task is not None]
    if not 1 <= count <= len(mixed):
        raise ValueError(f"generate_tasks(count={count}): ask for 1 to {len(mixed)}, the number of different tasks")
    return _shuffled(mixed[:count], seed, len(kinds))


def split_tasks(tasks: Sequence[Task], validation: int, seed: int = 0) -> tuple[list[Task], list[Task]]:
    """``(training, validation)`` rows: ``validation`` of the questions go to the second list, and none is in both.

    Raises ValueError where one of the lists would be empty.
    """
    questions = list(dict.fromkeys((task["instruction"], task["input"]) for task in tasks))
    if not 1 <= validation < len(questions):
        raise ValueError(
            f"split_tasks(validation={validation}): both sides need some of the {len(questions)} different questions"
        )
    held = {questions[index] for index in global_order(len(questions), seed, 0)[:validation]}
    sides: tuple[list[Task], list[Task]] = ([], [])
    for task in tasks:
        sides[(task["instruction"], task["input"]) in held].append(task)
    return sides


def _shuffled(tasks: list[Task], seed: int, number: int) -> list[Task]:
    return [tasks[index] for index in global_order(len(tasks), seed, number)]


def _task(instruction: str, given: str, answer: object) -> Task:
    return {"instruction": instruction, "input": given, "output": str(answer)}


def _kinds() -> Iterator[Iterable[Task]]:
    for wording, of_word in _WORD_TASKS.items():
        yield [_task(wording, word, of_word(word)) for word in WORDS]
    yield [_task("What is the sum?", f"{a} + {b}", a + b) for a in range(10) for b in range(10)]
    yield [_task("Which number comes next?", str(n), n + 1) for n in range(50)]
    yield [_task("Which number comes before?", str(n + 1), n) for n in range(50)]
    yield _comparisons()
    yield [_task("Sort the digits.", " ".join(p), " ".join(sorted(p))) for p in permutations("12345", 3)]
    yield [_task("Which is larger?", f"{a} or {b}", max(a, b)) for a, b in permutations(range(10), 2)]
    yield _opposites()
    for_colour = [(thing, colour) for colour, things in COLOURS.items() for thing in things.split(", ")]
    yield [_task("What colour is this?", thing, colour) for thing, colour in for_colour]
    yield [_task("Write the plural.", word, _plural(word)) for word in WORDS if word not in UNCOUNTABLE]
    yield [_task("Swap the two words.", f"{a} {b}", f"{b} {a}") for a, b in _pairs()]
    yield [_task("Which word comes first in the alphabet?", f"{a} {b}", min(a, b)) for a, b in _pairs()]


def _opposites() -> Iterator[Task]:
    for pair in OPPOSITES.split(", "):
        first, second = pair.split()
        yield _task(f"What is the opposite of {first}?", "", second)
        yield _task(f"What is the opposite of {second}?", "", first)


def _comparisons() -> Iterator[Task]:
    for a, b in permutations(range(10), 2):
        yield _task(f"Is {a} more than {b}?", "", "yes" if a > b else "no")


def _pairs() -> Iterator[tuple[str, str]]:
    for step in (1, 7, 31):
        yield from zip(WORDS, WORDS[step:] + WORDS[:step], strict=True)


def _plural(word: str) -> str:
    return IRREGULAR.get(word) or word + ("es" if word.endswith(("s", "x", "sh", "ch")) else "s")


_WORD_TASKS: Mapping[str, Callable[[str], object]] = {
    "Copy the word.": lambda word: word,
    "Say the word twice.": lambda word: f"{word} {word}",
    "Write the word in capital letters.": str.upper,
    "Spell the word.": "-".join,
    "Write the word backwards.": lambda word: word[::-1],
    "What is the first letter?": lambda word: word[0],
    "What is the last letter?": lambda word: word[-1],
    "How many letters does the word have?": len,
}
