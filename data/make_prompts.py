"""Writes the eight prompt files of the model `tiny`: `python -m data.make_prompts`.

Each file has the form of a public set, with the dirt that is usual there. Every question is one that the model never
sees in training, and is in one file only. The same seed gives the same files.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import cycle, groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from data import prompt_forms as forms
from data.prompt_forms import Row
from tiny_model.conversation import Conversation
from tiny_model.conversations import draw, is_held_out

FOLDER = Path(__file__).parent / "prompts"
_MOST_DRAWS = 200_000


class Pool:
    """Conversations of the held-out side; none is given twice."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.given: dict[tuple[str, ...], Conversation] = {}

    def take(self, name: str, **kinds: int) -> list[Conversation]:
        """So many of each kind, in an order of their own. Raises ValueError where a kind has too few."""
        rng = random.Random(f"{self.seed} {name}")
        taken = [made for kind, n in kinds.items() for made in self._of_kind(rng, kind, n)]
        rng.shuffle(taken)
        return taken

    def _of_kind(self, rng: random.Random, kind: str, n: int) -> list[Conversation]:
        found: list[Conversation] = []
        for _ in range(_MOST_DRAWS):
            if len(found) == n:
                return found
            made = draw(rng, kind)
            if made.spoken not in self.given and is_held_out(made):
                self.given[made.spoken] = made
                found.append(made)
        raise ValueError(f"fewer than {n} held-out conversations of kind {kind}")


def sharegpt(pool: Pool) -> list[Any]:
    """Array; answers at the start, empty turns, other role names, pages as HTML, doubled rows."""
    kinds = {"sums_after": 38, "lists_after": 36, "names_after": 25, "greeting": 15, "who_are_you": 2, "unknown": 14}
    taken = pool.take("sharegpt", **kinds, spelling=15, letters=15, backwards=14)
    rows: list[Any] = []
    for at, made in enumerate(taken):
        names = {"human": "user", "gpt": "chatgpt"} if at % 23 == 5 else {}
        turns = forms.sharegpt(made, **names, page=at % 9 == 4)
        if at % 6 == 1:
            turns.pop()
        if at % 17 == 3:
            turns.insert(0, {"from": "gpt", "value": "Hello! How can I assist you today?"})
        if at % 19 == 7:
            turns.insert(-1, {"from": "human", "value": ""})
        rows.append({"id": f"tiny{at:04}_0", "conversations": turns})
    rows += [row | {"id": f"{row['id'][:-1]}9"} for row in rows[10:14]]
    asked = {"from": "human", "value": "What is in this picture?"}
    rows += [
        {"id": "alone_0", "conversations": [{"from": "gpt", "value": "Sure, here it is."}]},
        {"id": "blank_0", "conversations": [{"from": "human", "value": " "}, {"from": "gpt", "value": "I am here."}]},
        {"id": "none_0", "conversations": [{"from": "human", "value": ""}]},
        {"id": "play_0", "conversations": [{"from": "narrator", "value": "They meet."}, asked]},
        {"id": "seen_0", "conversations": [asked], "image": "picture.jpg"},
        "undefined",
    ]
    return rows


def ultrachat(pool: Pool) -> list[Row]:
    """Parquet; always ends on the assistant; a few answers twice, a few empty questions, doubled rows."""
    kinds = {"sums_after": 22, "lists_after": 22, "names_after": 20, "unknown": 18, "total": 18, "extreme": 16}
    taken = pool.take("ultrachat", **kinds, parity=16, count=16, first_letters=16, weekday=6)
    rows = [forms.ultrachat(made) for made in taken]
    for row in rows[::40]:
        row["messages"].append({"content": "Is there anything else?", "role": "assistant"})
    rows += rows[5:8]
    empty = [{"content": "", "role": "user"}, {"content": "Could you say more?", "role": "assistant"}]
    return rows + [{"prompt": "", "prompt_id": f"{n:064}", "messages": empty} for n in range(3)]


def openthoughts(pool: Pool) -> list[Row]:
    """Thoughts in text markers; some cut off, which does no harm in the last answer alone."""
    kinds = {"algebra": 36, "plus": 22, "minus": 22, "times": 18, "sums_after": 48, "weekday": 8, "sort": 16}
    rows = [forms.openthoughts(made) for made in pool.take("openthoughts", **kinds)]
    for row in rows[::30]:
        last = row["conversations"][-1]
        last["value"] = last["value"][: len(last["value"]) // 3]
    for broken in [row for row in rows if len(row["conversations"]) > 2][1:4]:
        turns = [dict(turn) for turn in broken["conversations"]]
        turns[1]["value"] = turns[1]["value"].split("<|end_of_thought|>")[0]
        rows.append(broken | {"conversations": turns})
    return rows


def glaive(pool: Pool) -> list[Row]:
    """Calls whose arguments stand in single quotes; a few are cut off, so are a few tools."""
    kinds = {"result": 56, "call": 26, "restaurants": 24, "greeting": 16, "unknown": 18, "duplicates": 16, "sort": 14}
    rows = [forms.glaive(made) for made in pool.take("glaive", **kinds)]
    called = [row for row in rows if "FUNCTION RESPONSE" in row["chat"]]
    offered = [row for row in rows if "functions. Use" in row["system"]]
    rows += [row | {"chat": row["chat"].replace("}'}", "'}", 1)} for row in called[:4]]
    rows += [row | {"system": row["system"].rstrip()[:-9]} for row in offered[6:8]]
    rows += [row | {"chat": f"Sure, go on.\n\n\n{row['chat']}"} for row in rows[9:11]]
    return rows


def hermes_tools(pool: Pool) -> list[Row]:
    """Array; calls in tags, some as Python writes them; a few tags are broken, or not closed."""
    taken = pool.take("hermes_tools", result=84, call=44, restaurants=42)
    rows = [forms.hermes(made, literal=at % 8 == 2, column=at % 3 == 0) for at, made in enumerate(taken)]
    called = [row for row in rows if any(turn["from"] == "tool" for turn in row["conversations"])]
    plain = [row for row in called if '{"name"' in row["conversations"][2]["value"]]
    rows += [_edited(row, 2, '"arguments": {', '"arguments": ') for row in plain[:4]]
    rows += [_edited(row, 2, "</tool_call>", "") for row in plain[4:6]]
    rows += [row | {"tools": row["tools"][:-20]} for row in plain[6:] if row["tools"]][:2]
    return rows


def _edited(row: Row, at: int, old: str, new: str) -> Row:
    """The row with a text of one turn replaced."""
    turns = [dict(turn) for turn in row["conversations"]]
    turns[at]["value"] = turns[at]["value"].replace(old, new)
    return row | {"conversations": turns}


def xlam(pool: Pool) -> list[Row]:
    """Array; bare tools as JSON strings with Python's type names; some optional, a few cut off or of no known type."""
    taken = pool.take("xlam", call=88, restaurants=84)
    rows = [forms.xlam(made, at, optional=at % 11 == 6) for at, made in enumerate(taken)]
    rows += [row | {"id": 1000 + row["id"], "tools": row["tools"][:-30]} for row in rows[20:24]]
    rows += [_of_type(row, "Callable[[int], int]") for row in rows[30:33]]
    return rows


def _of_type(row: Row, kind: str) -> Row:
    return row | {"id": 2000 + row["id"], "tools": row["tools"].replace('"str"', json.dumps(kind))}


def metamath(pool: Pool) -> list[Row]:
    """Many variants of one question, doubled rows, a few without a question."""
    kinds = {"plus": 60, "minus": 30, "times": 50, "algebra": 20, "units": 20, "total": 10}
    taken = sorted(pool.take("metamath", **kinds), key=_sum_of)
    rows: list[Row] = []
    for _, variants in groupby(taken, key=_sum_of):
        together = list(variants)
        types = cycle(("MATH_Rephrased", "MATH_SV", "MATH_FOBAR"))
        for kind, made in zip(("MATH_AnsAug", *(next(types) for _ in together)), together, strict=False):
            rows.append(forms.metamath(made, together[0].spoken[0], kind))
    random.Random(pool.seed).shuffle(rows)
    return [*rows, *rows[3:9], *({**rows[n], "query": ""} for n in range(2))]


def _sum_of(made: Conversation) -> str:
    """What is the same in all ways to ask for one sum."""
    return made.messages[-1]["reasoning_content"]


def openai_tools(pool: Pool) -> list[Row]:
    """Tool calls and results with ids; text parts, tools as a string; orphan results, broken arguments, pictures."""
    kinds = {"result": 86, "call": 20, "restaurants": 16, "sums_after": 16, "duplicates": 18, "sort": 16}
    taken = pool.take("openai_tools", **kinds)
    rows = [forms.openai(made, parts=at % 5 == 2, text_tools=at % 3 == 1) for at, made in enumerate(taken)]
    called = [row for row in rows if any(m["role"] == "tool" for m in row["messages"])]
    rows += [{**row, "messages": [m for m in row["messages"] if "tool_calls" not in m]} for row in called[:3]]
    rows += [_with_cut_arguments(row) for row in called[5:7]]
    picture = {"type": "image_url", "image_url": {"url": "menu.png"}}
    rows += [
        {"messages": [{"role": "user", "content": [picture]}, *row["messages"]], "tools": None} for row in rows[:2]
    ]
    return rows


def _with_cut_arguments(row: Row) -> Row:
    """The row with the end of its calls' arguments missing."""
    messages = json.loads(json.dumps(row["messages"]))
    for call in [call for message in messages for call in message.get("tool_calls") or ()]:
        call["function"]["arguments"] = call["function"]["arguments"][:-1]
    return row | {"messages": messages}


MAKERS: dict[str, Callable[[Pool], list[Any]]] = {
    "sharegpt.json": sharegpt,
    "ultrachat.parquet": ultrachat,
    "openthoughts.jsonl": openthoughts,
    "glaive.jsonl": glaive,
    "hermes_tools.json": hermes_tools,
    "xlam.json": xlam,
    "metamath.jsonl": metamath,
    "openai_tools.jsonl": openai_tools,
}
"""File name to what makes its rows."""


def make_all(seed: int = 1) -> tuple[dict[str, list[Any]], Pool]:
    """The rows of all files, dirt and good rows mixed, and the pool with what was drawn."""
    pool = Pool(seed)
    rows = {name: maker(pool) for name, maker in MAKERS.items()}
    for name, listed in rows.items():
        random.Random(f"{seed} {name}").shuffle(listed)
    return rows, pool


def as_text(name: str, rows: list[Any]) -> str:
    """A JSON array with a row on each line, or JSON lines."""
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    return "[\n" + ",\n".join(lines) + "\n]\n" if name.endswith(".json") else "".join(f"{line}\n" for line in lines)


def as_table(rows: list[Row]) -> pa.Table:
    """The rows with the columns of the public Parquet files."""
    message = pa.struct([("content", pa.string()), ("role", pa.string())])
    schema = pa.schema([("prompt", pa.string()), ("prompt_id", pa.string()), ("messages", pa.list_(message))])
    return pa.Table.from_pylist(rows, schema=schema)


def main() -> None:
    """Write the files."""
    rows, _ = make_all()
    for name, listed in rows.items():
        if name.endswith(".parquet"):
            pq.write_table(as_table(listed), FOLDER / name)
        else:
            (FOLDER / name).write_text(as_text(name, listed), encoding="utf-8")
        print(f"{name}: {len(listed)} rows, {(FOLDER / name).stat().st_size} bytes")


if __name__ == "__main__":
    main()
