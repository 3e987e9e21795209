"""Lists: removing duplicates, sorting, extremes, sums, filters; the thought goes item by item."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tiny_model.conversation import Turn, listed
from tiny_model.lexicon import NAMES, NOUNS
from tiny_model.numbers import add_steps


def duplicates(rng: random.Random) -> Turn:
    """Keep the first of each item."""
    words = rng.random() < 0.6
    pool: Sequence[object] = rng.sample(NOUNS, 6) if words else rng.sample(range(100), 6)
    items = [rng.choice(pool[: rng.randint(2, 6)]) for _ in range(rng.randint(3, 11))]
    question = rng.choice(
        (
            "Remove duplicates from {}.",
            "Remove the duplicates from this list: {}",
            "Drop repeated items: {}",
            "Delete duplicates, keep the order: {}",
            "Unique items of {}?",
            "List each item once: {}",
        )
    ).format(listed(rng, items))
    kept = list(dict.fromkeys(items))
    seen: list[object] = []
    steps = []
    for item in items:
        steps.append(f"{item} {'seen' if item in seen else 'new'}")
        seen.append(item)
    thought = f"I keep the first of each item and go through the list: {', '.join(steps)}."
    return Turn(question, thought, f"The items are {', '.join(map(str, kept))}.")


def sort_numbers(rng: random.Random) -> Turn:
    """Selection sort, smallest or largest first."""
    items = rng.sample(range(100), rng.choice((3, 3, 4, 4, 5, 5, 6)))
    up = rng.random() < 0.7
    templates = (
        (
            "Sort {}.",
            "Sort these numbers: {}",
            "Put {} in order.",
            "Order {} from smallest to largest.",
            "Sort ascending: {}",
        )
        if up
        else ("Sort {} in descending order.", "Order {} from largest to smallest.", "Sort descending: {}")
    )
    question = rng.choice(templates).format(listed(rng, items))
    return Turn(question, sort_thought(items, up), ", ".join(map(str, sorted(items, reverse=not up))))


def sort_thought(items: Sequence[int], up: bool) -> str:
    """The worked selection sort."""
    left, steps = list(items), []
    while left:
        found = left[0]
        rounds = []
        for item in left[1:]:
            better = min(found, item) if up else max(found, item)
            rounds.append(f"{found} or {item}: {better}")
            found = better
        steps.append(f"Left {' '.join(map(str, left))}. {', '.join([*rounds, f'take {found}'])}.")
        left.remove(found)
    return f"I take the {'smallest' if up else 'largest'} each time. " + " ".join(steps)


def extreme(rng: random.Random) -> Turn:
    """The largest or smallest number."""
    items = rng.sample(range(100), rng.randint(3, 8))
    large = rng.random() < 0.5
    word = rng.choice(("largest", "biggest", "maximum") if large else ("smallest", "lowest", "minimum"))
    question = rng.choice(("What is the {w} of {}?", "Find the {w} number in {}.", "{w} of {}?")).format(
        listed(rng, items), w=word
    )
    found, steps = items[0], []
    for item in items[1:]:
        better = max(found, item) if large else min(found, item)
        steps.append(f"{found} or {item}: {better}")
        found = better
    thought = f"I look for the {'largest' if large else 'smallest'} number. {', '.join(steps)}."
    return Turn(question, thought, f"The {'largest' if large else 'smallest'} number is {found}.")


def total(rng: random.Random) -> Turn:
    """The sum of a short list."""
    items = [rng.randint(1, 50) for _ in range(rng.randint(3, 5))]
    question = rng.choice(("Sum of {}?", "Add up {}.", "What is the sum of {}?", "Total of {}?")).format(
        listed(rng, items)
    )
    done, steps = items[0], []
    for item in items[1:]:
        steps.append(f"{done} and {item}: {add_steps(done, item)}.")
        done += item
    return Turn(question, f"I add one number after the other. {' '.join(steps)}", f"The sum is {done}.")


def parity(rng: random.Random) -> Turn:
    """Keep even or odd numbers."""
    items = [rng.randint(0, 99) for _ in range(rng.randint(3, 9))]
    wanted = rng.choice(("even", "odd"))
    question = rng.choice(
        ("Which of {} are {w}?", "Keep the {w} numbers of {}.", "List the {w} numbers in {}.")
    ).format(listed(rng, items), w=wanted)
    steps = ", ".join(f"{item} {'odd' if item % 2 else 'even'}" for item in items)
    kept = [item for item in items if (item % 2 == 1) == (wanted == "odd")]
    answer = ", ".join(map(str, kept)) if kept else "none"
    return Turn(question, f"I check the last digit of each number: {steps}. I keep the {wanted} ones.", answer)


def count(rng: random.Random) -> Turn:
    """How many items there are, or how often one is there."""
    pool = rng.sample(NOUNS if rng.random() < 0.5 else NAMES, 3)
    items = [rng.choice(pool) for _ in range(rng.randint(3, 9))]
    if rng.random() < 0.5:
        question = rng.choice(("How many items are in {}?", "Count the items in {}.", "Length of {}?")).format(
            listed(rng, items)
        )
        steps = ", ".join(f"{item} {n}" for n, item in enumerate(items, start=1))
        return Turn(
            question, f"I count the items one by one, from the first: {steps}.", f"There are {len(items)} items."
        )
    wanted, n, steps = rng.choice(items), 0, []
    question = rng.choice(("How often is {w} in {}?", "Count {w} in {}.")).format(listed(rng, items), w=wanted)
    for item in items:
        n += item == wanted
        steps.append(f"{item} {n}")
    return Turn(
        question, f"I look for {wanted} in the list and count: {', '.join(steps)}.", f"The count of {wanted} is {n}."
    )
