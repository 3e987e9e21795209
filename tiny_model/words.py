"""Letters of words, and days of the week."""

from __future__ import annotations

import random

from tiny_model.conversation import Turn, listed
from tiny_model.lexicon import DAYS, NOUNS


def backwards(rng: random.Random) -> Turn:
    """A word's letters in reverse."""
    word = rng.choice(NOUNS)
    question = rng.choice(
        ("Reverse the word {}.", "Spell {} backwards.", "Write {} backwards.", "What is {} in reverse?", "Reverse {}")
    ).format(word)
    thought = f"I spell {word}: {' '.join(word)}. Now from the last letter to the first: {' '.join(word[::-1])}."
    return Turn(question, thought, f"Backwards it is {' '.join(word[::-1])}.")


def spelling(rng: random.Random) -> Turn:
    """A word's letters."""
    word = rng.choice(NOUNS)
    question = rng.choice(("Spell {}.", "How do you spell {}?", "Spell the word {}.")).format(word)
    thought = f"I say the letters of {word} one after the other: {' '.join(word)}. That is the whole word."
    return Turn(question, thought, f"The letters are {' '.join(word)}.")


def letters(rng: random.Random) -> Turn:
    """How many letters a word has, or how often it has one."""
    word = rng.choice(NOUNS)
    if rng.random() < 0.5:
        question = rng.choice(
            ("How many letters has {}?", "Count the letters of {}.", "How long is the word {}?")
        ).format(word)
        steps = ", ".join(f"{letter} {n}" for n, letter in enumerate(word, start=1))
        return Turn(
            question,
            f"I spell {word} and count each letter: {steps}. Those are all.",
            f"The word {word} has {len(word)} letters.",
        )
    wanted, n, steps = rng.choice(word), 0, []
    question = rng.choice(("How many {l} are in {}?", "How often is the letter {l} in {}?")).format(word, l=wanted)
    for letter in word:
        n += letter == wanted
        steps.append(f"{letter} {n}")
    return Turn(
        question,
        f"I spell {word} and count the letter {wanted}: {', '.join(steps)}.",
        f"The word {word} has {wanted} {n} times.",
    )


def first_letters(rng: random.Random) -> Turn:
    """The first letter of each word."""
    chosen = rng.sample(NOUNS, rng.randint(3, 7))
    question = rng.choice(("First letters of {}?", "Take the first letter of each word: {}")).format(
        listed(rng, chosen)
    )
    steps = ", ".join(f"{word} {word[0]}" for word in chosen)
    return Turn(
        question,
        f"I take the first letter of each word in turn: {steps}.",
        f"The letters are {' '.join(word[0] for word in chosen)}.",
    )


def weekday(rng: random.Random) -> Turn:
    """Some days before or after a day."""
    start, n, after = rng.randrange(7), rng.randint(1, 12), rng.random() < 0.6
    word = "after" if after else "before"
    unit = "day" if n == 1 else "days"
    question = rng.choice(("What day is {} {} {} {}?", "Which day comes {} {} {} {}?", "{} {} {} {}?")).format(
        n, unit, word, DAYS[start]
    )
    days = [DAYS[(start + (i if after else -i)) % 7] for i in range(1, n + 1)]
    steps = ", ".join(f"{i} {day}" for i, day in enumerate(days, start=1))
    way = "forward" if after else "back"
    thought = f"I start at {DAYS[start]} and go {way} {n}, day by day: {steps}. The day is {days[-1]}."
    return Turn(question, thought, f"It is {days[-1]}.")
