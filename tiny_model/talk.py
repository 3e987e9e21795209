"""Greetings, questions that are outside what the model learnt, and follow-up questions."""

from __future__ import annotations

import random
from collections.abc import Callable

from tiny_model.conversation import Turn, listed
from tiny_model.lexicon import CITIES, NAMES, NOUNS
from tiny_model.lists import duplicates
from tiny_model.numbers import minus, minus_thought, plus, plus_thought, times_steps

_HELP = "I can help with numbers, lists, words, days, units and functions."


def greeting(rng: random.Random) -> Turn:
    """A word of welcome, thanks or farewell."""
    name = rng.choice(NAMES)
    named = rng.random() < 0.7
    who = f"The user is {name}." if named else "The user gives no name."
    tail = f" {name}" if named else ""
    kind = rng.choice(("hello", "hello", "thanks", "bye"))
    if kind == "hello":
        start = rng.choice(("Hello", "Hi", "Good morning", "Good evening", "Hey"))
        question = (
            start
            + rng.choice(("!", "."))
            + (rng.choice((" I am {}.", " My name is {}.", " This is {}.")).format(name) if named else "")
        )
        return Turn(
            question,
            f"This is a greeting. {who} I greet back and say what I can help with: numbers, lists and words.",
            f"Hello{tail}! {_HELP}",
        )
    if kind == "thanks":
        question = rng.choice(("Thanks", "Thank you", "Thanks a lot", "Great, thanks")) + (
            f". {name}" if named else rng.choice(("!", "."))
        )
        return Turn(
            question,
            f"The user thanks me. {who} I say that it was a pleasure and that I am here for more questions.",
            f"You are welcome{tail}!",
        )
    question = rng.choice(("Bye", "Goodbye", "See you", "Good night")) + (
        f", says {name}." if named else rng.choice(("!", "."))
    )
    return Turn(
        question, f"The user leaves. {who} I say goodbye in a friendly way and wish a good day.", f"Goodbye{tail}!"
    )


def unknown(rng: random.Random) -> Turn:
    """Something that the model did not learn: it says so."""
    thing, city = rng.choice(NOUNS), rng.choice(CITIES)
    topic = rng.choice((thing, city))
    question = rng.choice(
        (
            "Write a poem about {}.",
            "Tell me a story about {}.",
            "What do you know about {}?",
            "Explain {} to a child.",
            "Why do people like {}?",
            "Who invented {}?",
            "Describe {}.",
            "Give me three facts about {}.",
            "Write an email about {}.",
            "What is the history of {}?",
            "What is {}?",
            "Can you draw {}?",
        )
    ).format(topic)
    thought = f"The user asks about {topic}. That is not something I learnt. I say what I can help with instead."
    return Turn(question, thought, f"I do not know about {topic}. {_HELP}")


def who_are_you(rng: random.Random) -> Turn:
    """What the model is."""
    question = rng.choice(("", "", "Hi! ", "Please tell me: ", "Quick question: ", "Excuse me. ")) + rng.choice(
        (
            "Who are you?",
            "What are you?",
            "What can you do?",
            "What is your name?",
            "Are you a person?",
            "Help",
            "Help me!",
        )
    )
    learnt = "numbers, lists, words, days, units and functions"
    thought = f"The user asks about me. I am a small model named Tiny. I learnt {learnt}."
    return Turn(question, thought, f"I am Tiny, a small model. {_HELP}")


def sums_after(rng: random.Random) -> list[Turn]:
    """A sum, and one or two changes to its result."""
    first = rng.choice((plus, minus))(rng)
    turns, value = [first], int(first.answer.rsplit(" ", 1)[1])
    for _ in range(rng.choice((1, 1, 2))):
        turn, value = rng.choice((_add, _take, _double))(rng, value)
        turns.append(turn)
    return turns


def _add(rng: random.Random, value: int) -> tuple[Turn, int]:
    n = rng.randint(1, 99)
    question = rng.choice(("Now add {}.", "And plus {}?", "Add {} to that.", "Then add {}.")).format(n)
    return Turn(
        question, f"The last result is {value}. {plus_thought(value, n)}", f"{value} + {n} = {value + n}"
    ), value + n


def _take(rng: random.Random, value: int) -> tuple[Turn, int]:
    n = rng.randint(1, 99)
    if n > value:
        return _add(rng, value)
    question = rng.choice(("Now subtract {}.", "And minus {}?", "Take {} from that.", "Then take away {}.")).format(n)
    return Turn(
        question, f"The last result is {value}. {minus_thought(value, n)}", f"{value} - {n} = {value - n}"
    ), value - n


def _double(rng: random.Random, value: int) -> tuple[Turn, int]:
    n = rng.choice((2, 2, 3))
    question = {2: rng.choice(("Double it.", "Now times 2.")), 3: "Now times 3."}[n]
    thought = (
        f"The last result is {value}. I multiply {n} and {value}: {times_steps(n, value)}. The product is {n * value}."
    )
    return Turn(question, thought, f"{n} * {value} = {n * value}"), n * value


def lists_after(rng: random.Random) -> list[Turn]:
    """A list without duplicates, and a question about it."""
    first = duplicates(rng)
    items = first.answer.removeprefix("The items are ").removesuffix(".").split(", ")
    return [first, rng.choice(_ABOUT_LISTS)(rng, items)]


def _length(rng: random.Random, items: list[str]) -> Turn:
    question = rng.choice(("How many are left?", "How many items is that?", "Count them."))
    steps = ", ".join(f"{item} {n}" for n, item in enumerate(items, start=1))
    return Turn(
        question, f"I count the items of the last answer: {steps}. I say the number.", f"There are {len(items)} items."
    )


def _last(rng: random.Random, items: list[str]) -> Turn:
    question = rng.choice(("Which one is last?", "What is the last item?"))
    thought = f"I look at the last answer: {', '.join(items)}. Nothing comes after {items[-1]}, so it is the last one."
    return Turn(question, thought, f"The last item is {items[-1]}.")


def _flip(rng: random.Random, items: list[str]) -> Turn:
    question = rng.choice(("Reverse that list.", "And backwards?", "Now in reverse order."))
    numbered = ", ".join(f"{n} {item}" for n, item in enumerate(items, start=1))
    back = ", ".join(f"{n} {items[n - 1]}" for n in range(len(items), 0, -1))
    thought = f"I number the items of the last answer: {numbered}. Now from the end: {back}."
    return Turn(question, thought, f"The items are {', '.join(items[::-1])}.")


_ABOUT_LISTS: tuple[Callable[[random.Random, list[str]], Turn], ...] = (_length, _last, _flip)


def names_after(rng: random.Random) -> list[Turn]:
    """A name told first and asked for later."""
    name, things = rng.choice(NAMES), rng.sample(NOUNS, 3)
    told = Turn(
        rng.choice(("My name is {n} and I like {t}.", "I am {n}. I have {t}.")).format(
            n=name, t=listed(rng, things[:2])
        ),
        f"The user is {name} and speaks of {things[0]} and {things[1]}. There is no question yet, I greet {name}.",
        f"Hello {name}! {_HELP}",
    )
    asked = Turn(
        rng.choice(("What is my name?", "Who am I?", "Do you remember my name?")),
        f"The user asks for the name from the start of the conversation. The name there was {name}. I say it.",
        f"Your name is {name}.",
    )
    return [told, asked]
