"""Arithmetic, algebra and units, worked digit by digit: every step is small enough for a small model."""

from __future__ import annotations

import random

from tiny_model.conversation import Turn

_PLACES = ("ones", "tens", "hundreds", "thousands")


def add_steps(a: int, b: int) -> str:
    """`47+85: ones 7+5=12 gives 2, tens 4+8+1=13 gives 32, hundreds 1 gives 132`."""
    steps, done, carry, place = [], "", 0, 0
    while a or b or carry or place == 0:
        digits = [n % 10 for n, rest in ((a, a), (b, b)) if rest or place == 0] + [carry] * bool(carry)
        total = sum(digits)
        done = f"{total % 10}{done}"
        shown = "+".join(map(str, digits))
        steps.append(
            f"{_PLACES[place]} {shown}={total} gives {done}"
            if len(digits) > 1
            else f"{_PLACES[place]} {shown} gives {done}"
        )
        a, b, carry, place = a // 10, b // 10, total // 10, place + 1
    return ", ".join(steps)


def subtract_steps(a: int, b: int) -> str:
    """`95-38: ones 5-8 borrow 15-8=7 gives 7, tens 9-1-3=5 gives 57`; needs a >= b."""
    steps, done, borrow, place, whole = [], "", 0, 0, a - b
    while a or b or place == 0:
        top, parts = a % 10, [d for d, shown in ((borrow, borrow), (b % 10, b or place == 0)) if shown]
        rest = top - sum(parts)
        minus = "".join(f"-{d}" for d in parts)
        text = f"{_PLACES[place]} {top}{minus}"
        if rest < 0:
            rest += 10
            text += f" borrow {top + 10}{minus}"
            borrow = 1
        else:
            borrow = 0
        done = f"{rest}{done}"
        steps.append(f"{text}={rest} gives {done}" if parts else f"{text} gives {done}")
        a, b, place = a // 10, b // 10, place + 1
    tail = f", so {whole}" if done != str(whole) else ""
    return ", ".join(steps) + tail


def times_steps(digit: int, b: int) -> str:
    """`7*46: 7*6=42 gives 2 carry 4, 7*4=28 28+4=32 gives 322`; `digit` has one digit."""
    steps, done, carry = [], "", 0
    digits = str(b)[::-1]
    for at, one in enumerate(digits):
        product = digit * int(one)
        total = product + carry
        text = f"{digit}*{one}={product}" + (f" {product}+{carry}={total}" if carry else "")
        last = at == len(digits) - 1
        done = f"{total if last else total % 10}{done}"
        carry = 0 if last else total // 10
        steps.append(f"{text} gives {done}" + (f" carry {carry}" if carry else ""))
    return ", ".join(steps)


def _number(rng: random.Random, most_digits: int) -> int:
    digits = rng.randint(1, most_digits)
    return rng.randint(1 if digits == 1 else 10 ** (digits - 1), 10**digits - 1)


def _asked(rng: random.Random, expression: str) -> str:
    return rng.choice(
        ("What is {}?", "Compute {}.", "Calculate {}", "{} = ?", "Please work out {}.", "How much is {}?", "{}")
    ).format(expression)


def plus(rng: random.Random) -> Turn:
    """`What is 2+2?`"""
    a, b = _number(rng, 3), _number(rng, 3)
    gap = rng.choice(("", " "))
    question = _asked(rng, f"{a}{gap}+{gap}{b}")
    return Turn(question, plus_thought(a, b), f"{a} + {b} = {a + b}")


def plus_thought(a: int, b: int) -> str:
    """The worked sum."""
    return f"This is a sum. I add {a} and {b}: {add_steps(a, b)}. The sum is {a + b}."


def minus(rng: random.Random) -> Turn:
    """A difference that is not negative."""
    a, b = _number(rng, 3), _number(rng, 3)
    a, b = max(a, b), min(a, b)
    gap = rng.choice(("", " "))
    return Turn(_asked(rng, f"{a}{gap}-{gap}{b}"), minus_thought(a, b), f"{a} - {b} = {a - b}")


def minus_thought(a: int, b: int) -> str:
    """The worked difference."""
    return f"This is a difference. I take {b} from {a}: {subtract_steps(a, b)}. The difference is {a - b}."


def times(rng: random.Random) -> Turn:
    """One digit times up to two."""
    a, b = rng.randint(2, 9), _number(rng, 2)
    gap, sign = rng.choice(("", " ")), rng.choice("*x")
    question = _asked(rng, f"{a}{gap}{sign}{gap}{b}" if sign == "*" or gap else f"{a} {sign} {b}")
    thought = f"This is a product. I multiply {a} and {b}: {times_steps(a, b)}. The product is {a * b}."
    return Turn(question, thought, f"{a} * {b} = {a * b}")


def algebra(rng: random.Random) -> Turn:
    """A linear equation with a whole solution."""
    letter = rng.choice("xyzn")
    a, x, b = rng.randint(2, 9), rng.randint(1, 9), rng.randint(1, 30)
    sign = rng.choice("+-") if a * x >= b else "+"
    c = a * x + b if sign == "+" else a * x - b
    equation = f"{a}{letter} {sign} {b} = {c}"
    question = rng.choice(
        ("Solve {}.", "Solve {} for {l}.", "Find {l} when {}.", "What is {l} if {}?", "{}, {l} = ?")
    ).format(equation, l=letter)
    work = f"take {b} from {c}: {subtract_steps(c, b)}" if sign == "+" else f"add {c} and {b}: {add_steps(c, b)}"
    divided = f"Then {a}{letter} = {a * x}. I divide by {a}: {a}*{x}={a * x}, so {letter} is {x}."
    thought = f"I solve for {letter}. I {work}. {divided}"
    return Turn(question, thought, f"{letter} = {x}")


_UNITS = (
    ("km", "m", 1000),
    ("kg", "g", 1000),
    ("litres", "ml", 1000),
    ("m", "cm", 100),
    ("cm", "mm", 10),
    ("hours", "minutes", 60),
    ("minutes", "seconds", 60),
    ("days", "hours", 24),
    ("weeks", "days", 7),
    ("feet", "inches", 12),
    ("dozen", "pieces", 12),
    ("years", "months", 12),
)


def units(rng: random.Random) -> Turn:
    """From a larger to a smaller unit."""
    large, small, factor = rng.choice(_UNITS)
    tenfold = factor in (10, 100, 1000)
    n = rng.randint(2, 99) if tenfold else rng.randint(2, 9)
    question = rng.choice(
        (
            "Convert {} {} to {}.",
            "How many {2} are {0} {1}?",
            "{} {} in {}?",
            "What is {} {} in {}?",
            "Express {} {} in {}.",
        )
    ).format(n, large, small)
    thought = f"I convert {large} to {small}. The factor is {factor}. "
    if tenfold:
        zeros = len(str(factor)) - 1
        thought += f"I put {zeros} {'zero' if zeros == 1 else 'zeros'} after {n}: {n * factor}."
    else:
        thought += f"I multiply {n} and {factor}: {times_steps(n, factor)}. The product is {n * factor}."
    return Turn(question, thought, f"{n} {large} = {n * factor} {small}")
