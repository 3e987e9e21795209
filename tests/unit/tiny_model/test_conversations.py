"""The generated conversations are right: every figure in them is checked against Python's own arithmetic."""

from __future__ import annotations

import json
import random
import re

import pytest

from tiny_model import lists, numbers, words
from tiny_model.conversation import Conversation
from tiny_model.conversations import HELD_OUT_SHARE, KINDS, draw, is_held_out
from tiny_model.functions import FUNCTIONS
from tiny_model.lexicon import DAYS


def drawn(kind: str, n: int = 300, seed: int = 0) -> list[Conversation]:
    rng = random.Random(seed)
    return [draw(rng, kind) for _ in range(n)]


def question(conversation: Conversation) -> str:
    return next(m["content"] for m in reversed(conversation.messages) if m["role"] == "user")


def test_there_are_at_least_eight_kinds_and_the_named_ones() -> None:
    named = {"plus", "duplicates", "restaurants", "sort", "backwards", "algebra", "units", "sums_after", "lists_after"}
    assert named <= set(KINDS)
    assert len(KINDS) >= 8


@pytest.mark.parametrize("kind", KINDS)
def test_a_conversation_ends_with_a_thought_and_an_answer_or_a_call(kind: str) -> None:
    for one in drawn(kind, 50):
        last = one.messages[-1]
        assert last["role"] == "assistant"
        assert last["reasoning_content"].strip()
        assert bool(one.answer) != bool(one.calls)
        assert next(m["role"] for m in one.messages if m["role"] != "system") == "user"


@pytest.mark.parametrize("kind", KINDS)
def test_one_seed_draws_the_same(kind: str) -> None:
    assert drawn(kind, 20, seed=3) == drawn(kind, 20, seed=3) != drawn(kind, 20, seed=4)


@pytest.mark.parametrize(
    ("kind", "sign"),
    [("plus", "+"), ("minus", "-"), ("times", "*")],
)
def test_arithmetic(kind: str, sign: str) -> None:
    for one in drawn(kind):
        left, right = one.answer.split(" = ")
        asked = [int(n) for n in re.findall(r"\d+", question(one))]
        assert left == f"{asked[0]} {sign} {asked[1]}"
        assert eval(left, {}) == int(right) >= 0


def equalities(text: str) -> list[tuple[str, int]]:
    """Every `1+2=3` of a thought."""
    return [(left, int(right)) for left, right in re.findall(r"(?<![\d+*-])(\d+(?:[-+*]\d+)+)=(\d+)", text)]


@pytest.mark.parametrize("kind", ["plus", "minus", "times", "algebra", "units", "total", "sums_after"])
def test_every_step_of_a_thought_is_true(kind: str) -> None:
    steps = 0
    for one in drawn(kind):
        for left, right in equalities(one.messages[-1]["reasoning_content"]):
            assert eval(left, {}) == right, one.messages[-1]["reasoning_content"]
            steps += 1
    assert steps > 300


@pytest.mark.parametrize("seed", range(300))
def test_the_digits_put_together_are_the_result(seed: int) -> None:
    rng = random.Random(seed)
    a, b, digit = rng.randint(0, 999), rng.randint(0, 999), rng.randint(2, 9)
    assert numbers.add_steps(a, b).rsplit(" ", 1)[1] == str(a + b)
    high, low = max(a, b), min(a, b)
    assert numbers.subtract_steps(high, low).rsplit(" ", 1)[1] == str(high - low)
    assert numbers.times_steps(digit, a).rsplit(" ", 1)[1] == str(digit * a)


def test_algebra_has_the_solution() -> None:
    for one in drawn("algebra"):
        letter, x = one.answer.split(" = ")
        found = re.search(rf"(\d+){letter} ([+-]) (\d+) = (\d+)", question(one))
        assert found
        a, sign, b, c = found.groups()
        assert int(a) * int(x) + int(sign + b) == int(c)


def items(text: str) -> list[str]:
    """The list at the end of a question."""
    return re.findall(r"\d+|[a-z]+", text)


def test_lists_are_sorted() -> None:
    for one in drawn("sort"):
        asked = [int(n) for n in re.findall(r"\d+", question(one))]
        down = re.search("descending|largest to smallest", question(one))
        assert one.answer == ", ".join(map(str, sorted(asked, reverse=bool(down))))


def test_duplicates_go_and_the_order_stays() -> None:
    for one in drawn("duplicates"):
        kept = one.answer.removeprefix("The items are ").removesuffix(".").split(", ")
        asked = [word for word in items(question(one)) if word in kept]
        assert list(dict.fromkeys(asked)) == kept
        assert len(asked) >= 3


def test_words_are_spelled() -> None:
    for one in drawn("backwards"):
        letters = one.answer.removeprefix("Backwards it is ").removesuffix(".")
        assert letters.replace(" ", "")[::-1] in question(one)
    turn = words.letters(random.Random(1))
    assert turn.answer


def test_days_are_counted() -> None:
    for one in drawn("weekday"):
        found = re.search(r"(\d+) days? (after|before) (\w+)", question(one))
        assert found
        step = int(found[1]) * (1 if found[2] == "after" else -1)
        assert one.answer == f"It is {DAYS[(DAYS.index(found[3]) + step) % 7]}."


@pytest.mark.parametrize("kind", ["restaurants", "call"])
def test_calls_name_an_offered_function_and_words_of_the_question(kind: str) -> None:
    for one in drawn(kind):
        ((name, arguments),) = one.calls
        offered = {tool["function"]["name"]: tool["function"]["parameters"] for tool in one.tools or []}
        assert list(arguments) == offered[name]["required"]
        assert all(str(value) in question(one) for value in arguments.values())


def test_the_best_of_a_result_is_named() -> None:
    seen = 0
    for one in drawn("result", 600):
        returned = json.loads(one.messages[-2]["content"])
        if isinstance(returned, list):
            best = max(returned, key=lambda place: place["rating"])
            assert best["name"] in one.answer
            assert str(best["rating"]) in one.answer
            seen += 1
        assert one.messages[-2]["tool_call_id"] == one.messages[-3]["tool_calls"][0]["id"]
    assert seen > 100
    assert len(FUNCTIONS) >= 4


def test_a_tenth_is_held_out_whatever_the_system_text() -> None:
    every = [one for kind in KINDS for one in drawn(kind, 200, seed=9)]
    share = sum(map(is_held_out, every)) / len(every)
    assert 0.5 * HELD_OUT_SHARE < share < 1.5 * HELD_OUT_SHARE
    for one in every:
        bare = Conversation(one.kind, [m for m in one.messages if m["role"] != "system"], one.tools, one.spoken)
        assert is_held_out(bare) == is_held_out(one)


def test_a_sorted_list_needs_a_thought_for_every_pair() -> None:
    thought = lists.sort_thought([3, 1, 2], up=True)
    assert thought.count(" or ") == 3
    assert thought.endswith("Left 3. take 3.")
