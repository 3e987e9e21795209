"""Function calls: choosing a function, filling its arguments, reading its result."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tiny_model.conversation import Conversation, Message, Turn, answer_message
from tiny_model.lexicon import CITIES, CUISINES, DAYS, PLACES

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Function:
    """One function, its questions, and how the thought names its arguments."""

    name: str
    description: str
    parameters: dict[str, tuple[str, str]]
    """Argument to (JSON type, description)."""
    ask: Callable[[random.Random], tuple[str, Arguments]]

    @property
    def schema(self) -> dict[str, Any]:
        """The function object that chat templates read."""
        properties = {name: {"type": kind, "description": text} for name, (kind, text) in self.parameters.items()}
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": {"type": "object", "properties": properties, "required": list(self.parameters)},
            },
        }


def _restaurant(rng: random.Random) -> tuple[str, Arguments]:
    cuisine, city, people = rng.choice(CUISINES), rng.choice(CITIES), rng.randint(2, 9)
    question = rng.choice(
        (
            "Find a {c} restaurant in {t} for {n} people.",
            "We are {n} and want {c} food in {t}.",
            "Where can {n} people eat {c} food in {t}?",
            "I need a table for {n} at a {c} restaurant in {t}.",
            "Search {c} restaurants in {t}, party of {n}.",
        )
    )
    return question.format(c=cuisine, t=city, n=people), {"cuisine": cuisine, "city": city, "people": people}


def _weather(rng: random.Random) -> tuple[str, Arguments]:
    city, day = rng.choice(CITIES), rng.choice(DAYS)
    question = rng.choice(
        ("What is the weather in {t} on {d}?", "Will it rain in {t} on {d}?", "Weather for {t}, {d}?")
    )
    return question.format(t=city, d=day), {"city": city, "day": day}


def _hotel(rng: random.Random) -> tuple[str, Arguments]:
    city, nights = rng.choice(CITIES), rng.randint(2, 14)
    question = rng.choice(
        ("Find a hotel in {t} for {n} nights.", "I need a room in {t}, {n} nights.", "Hotels in {t} for {n} nights?")
    )
    return question.format(t=city, n=nights), {"city": city, "nights": nights}


def _table(rng: random.Random) -> tuple[str, Arguments]:
    place, people, day = rng.choice(PLACES), rng.randint(2, 9), rng.choice(DAYS)
    question = rng.choice(
        ("Book a table at {p} for {n} on {d}.", "Reserve {p} on {d} for {n} people.", "Table for {n} at {p}, {d}.")
    )
    return question.format(p=place, n=people, d=day), {"restaurant": place, "people": people, "day": day}


def _train(rng: random.Random) -> tuple[str, Arguments]:
    start, stop = rng.sample(CITIES, 2)
    day = rng.choice(DAYS)
    question = rng.choice(("Trains from {a} to {b} on {d}?", "I want to go from {a} to {b} on {d} by train."))
    return question.format(a=start, b=stop, d=day), {"start": start, "stop": stop, "day": day}


FUNCTIONS = (
    Function(
        "find_restaurants",
        "Search restaurants",
        {"cuisine": ("string", "Kind of food"), "city": ("string", "City"), "people": ("integer", "Party size")},
        _restaurant,
    ),
    Function("get_weather", "Weather forecast", {"city": ("string", "City"), "day": ("string", "Weekday")}, _weather),
    Function("find_hotels", "Search hotels", {"city": ("string", "City"), "nights": ("integer", "Nights")}, _hotel),
    Function(
        "book_table",
        "Book a table",
        {
            "restaurant": ("string", "Name"),
            "people": ("integer", "Party size"),
            "day": ("string", "Weekday"),
        },
        _table,
    ),
    Function(
        "find_trains",
        "Search trains",
        {"start": ("string", "From"), "stop": ("string", "To"), "day": ("string", "Weekday")},
        _train,
    ),
)
RESTAURANTS = FUNCTIONS[0]


def _turn(function: Function, question: str, arguments: Arguments) -> Turn:
    named = ", ".join(f"{name} {value}" for name, value in arguments.items())
    thought = (
        f"The user needs {function.name}: {function.description}. I take the arguments from the question: {named}. "
        f"I call {function.name}."
    )
    return Turn(question, thought, calls=((function.name, arguments),))


def _offered(rng: random.Random, function: Function) -> list[dict[str, Any]]:
    """The function among up to two others."""
    others = rng.sample([f for f in FUNCTIONS if f is not function], rng.choice((0, 0, 1, 1, 2)))
    chosen = [function, *others]
    rng.shuffle(chosen)
    return [f.schema for f in chosen]


def call(rng: random.Random, kind: str, function: Function, system: str | None) -> Conversation:
    """A question that needs a function."""
    question, arguments = function.ask(rng)
    turn = _turn(function, question, arguments)
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    messages += [{"role": "user", "content": question}, answer_message(turn)]
    return Conversation(kind, messages, _offered(rng, function), (question,))


def result(rng: random.Random, kind: str, system: str | None) -> Conversation:
    """A question, the call, its result: the answer reads the result."""
    function = rng.choice(FUNCTIONS[:3])
    question, arguments = function.ask(rng)
    called = _turn(function, question, arguments)
    returned, thought, answer = _RESULTS[function.name](rng, arguments)
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    messages += [{"role": "user", "content": question}, answer_message(called, thought=rng.random() < 0.5)]
    messages.append({"role": "tool", "tool_call_id": f"functions.{function.name}:0", "content": json.dumps(returned)})
    messages.append(answer_message(Turn("", thought, answer)))
    return Conversation(kind, messages, _offered(rng, function), (question, json.dumps(returned)))


def _rated(rng: random.Random, arguments: Arguments) -> tuple[Any, str, str]:
    places = rng.sample(PLACES, rng.randint(2, 4))
    ratings = rng.sample(range(11, 50), len(places))
    found = [{"name": place, "rating": r / 10} for place, r in zip(places, ratings, strict=True)]
    best, steps = found[0], [f"{found[0]['name']} has {found[0]['rating']}"]
    for place in found[1:]:
        best = max(best, place, key=lambda p: p["rating"])
        steps.append(f"{place['name']} has {place['rating']}, best {best['name']}")
    thought = (
        f"The result has {len(found)} restaurants in {arguments['city']}. {'. '.join(steps)}. I name the best one."
    )
    return found, thought, f"I suggest {best['name']} in {arguments['city']}, rated {best['rating']}."


def _forecast(rng: random.Random, arguments: Arguments) -> tuple[Any, str, str]:
    sky, degrees = rng.choice(("sunny", "cloudy", "rainy", "snowy", "windy")), rng.randint(1, 35)
    returned = {"sky": sky, "degrees": degrees}
    thought = (
        f"The result is for {arguments['city']} on {arguments['day']}: the sky is {sky}, it has {degrees} degrees. "
        "I tell the user."
    )
    return returned, thought, f"It will be {sky} in {arguments['city']} on {arguments['day']}, {degrees} degrees."


def _room(rng: random.Random, arguments: Arguments) -> tuple[Any, str, str]:
    name, price = f"Hotel {rng.choice(PLACES)}", rng.randint(40, 300)
    returned = {"hotel": name, "price": price}
    thought = (
        f"The result is {name} in {arguments['city']}. A night costs {price}, for {arguments['nights']} nights. "
        "I tell the user the name and the price."
    )
    return returned, thought, f"{name} in {arguments['city']} costs {price} a night."


_RESULTS = {"find_restaurants": _rated, "get_weather": _forecast, "find_hotels": _room}
