"""Conversations as rows of eight public prompt sets: their columns, their roles, their way to write calls."""

from __future__ import annotations

import hashlib
import html
import json
from typing import Any

from tiny_model.conversation import Conversation, Message

Row = dict[str, Any]

_LESSON = (
    "Your role as an assistant involves exploring questions through a systematic long thinking process before you give "
    "the final precise and accurate solution. Please structure your response into two main sections: Thought and "
    "Solution. In the Thought section, detail your reasoning in this format: <|begin_of_thought|> {thought with steps "
    "separated with '\\n\\n'} <|end_of_thought|> In the Solution section, present the final answer in this format: "
    "<|begin_of_solution|> {final formatted, precise, and clear solution} <|end_of_solution|> Now, try to solve the "
    "following question through the above guidelines:"
)
_FUNCTIONS = "SYSTEM: You are a helpful assistant with access to the following functions. Use them if required -\n"
_NO_FUNCTIONS = "SYSTEM: You are a helpful assistant, with no access to external functions."
_HERMES = (
    "You are a function calling AI model. You are provided with function signatures within <tools> </tools> XML tags.\n"
    "<tools>\n{tools}\n</tools>\nFor each function call return a json object within <tool_call> </tool_call> tags:\n"
    "<tool_call>\n{{'arguments': <args-dict>, 'name': <function-name>}}\n</tool_call>"
)
_XLAM_TYPES = {"string": "str", "integer": "int"}


def sharegpt(made: Conversation, *, human: str = "human", gpt: str = "gpt", page: bool = False) -> list[Row]:
    """The turns under `from` and `value`; `page` saves the answers as a page's HTML."""
    names = {"user": human, "assistant": gpt, "system": "system"}
    turns = [{"from": names[m["role"]], "value": m["content"]} for m in made.messages]
    for turn in turns:
        if page and turn["from"] == gpt:
            turn["value"] = f'<div class="markdown prose w-full"><p>{html.escape(turn["value"])}</p></div>'
    return turns


def ultrachat(made: Conversation) -> Row:
    """Always ends on the assistant; `prompt` repeats the first question."""
    messages = [{"content": m["content"], "role": m["role"]} for m in made.messages if m["role"] != "system"]
    text = messages[0]["content"]
    return {"prompt": text, "prompt_id": hashlib.sha256(text.encode()).hexdigest(), "messages": messages}


def openthoughts(made: Conversation) -> Row:
    """Thought and answer in text markers, which the long system text asks for."""
    turns = [_thinking(m) for m in made.messages if m["role"] != "system"]
    return {"system": _LESSON, "conversations": turns}


def _thinking(message: Message) -> Row:
    if message["role"] == "user":
        return {"from": "user", "value": message["content"]}
    thought = f"<|begin_of_thought|>\n\n{message['reasoning_content']}\n\n<|end_of_thought|>"
    return {
        "from": "assistant",
        "value": f"{thought}\n\n<|begin_of_solution|>\n\n{message['content']}\n\n<|end_of_solution|>",
    }


def glaive(made: Conversation) -> Row:
    """One string; the functions as objects, not as a list, in the system text."""
    functions = [json.dumps(tool["function"], indent=4) for tool in made.tools or ()]
    system = _FUNCTIONS + "\n\n".join(functions) if functions else _NO_FUNCTIONS
    turns = [_glaive_turn(m) for m in made.messages if m["role"] != "system"]
    return {"system": f"{system}\n\n", "chat": "".join(f"{turn}\n\n\n" for turn in turns)}


def _glaive_turn(message: Message) -> str:
    if message["role"] != "assistant":
        label = {"user": "USER", "tool": "FUNCTION RESPONSE"}[message["role"]]
        return f"{label}: {message['content']}"
    calls = [
        f'<functioncall> {{"name": "{call["name"]}", "arguments": \'{call["arguments"]}\'}}' for call in _calls(message)
    ]
    return f"ASSISTANT: {' '.join([message['content'] or '', *calls]).strip()} <|endoftext|>"


def hermes(made: Conversation, *, literal: bool = False, column: bool = True) -> Row:
    """Tags in ShareGPT turns; `literal` writes calls as Python does; without `column` only the system has the tools."""
    turns = [{"from": "system", "value": _HERMES.format(tools=made.tools)}]
    turns += [_hermes_turn(m, literal) for m in made.messages if m["role"] != "system"]
    asked = made.spoken[0]
    return {
        "id": hashlib.sha256(asked.encode()).hexdigest()[:32],
        "conversations": turns,
        "tools": json.dumps(made.tools) if column else None,
        "category": "Travel",
        "subcategory": "Planning",
        "task": asked.split(".")[0][:40],
    }


def _hermes_turn(message: Message, literal: bool) -> Row:
    if message["role"] == "user":
        return {"from": "human", "value": message["content"]}
    if message["role"] == "tool":
        return {"from": "tool", "value": f"<tool_response>\n{message['content']}\n</tool_response>"}
    calls = [call | {"arguments": json.loads(call["arguments"])} for call in _calls(message)]
    texts = [str(call) if literal else json.dumps(call) for call in calls]
    tags = [f"<tool_call>\n{text}\n</tool_call>" for text in texts]
    return {"from": "gpt", "value": "\n".join([message["content"] or "", *tags]).strip()}


def xlam(made: Conversation, number: int, *, optional: bool = False) -> Row:
    """Query, answers and tools, the last two as JSON strings; `optional` weakens each tool's last parameter."""
    tools = [_bare(tool["function"], optional) for tool in made.tools or ()]
    answers = [{"name": name, "arguments": arguments} for name, arguments in made.calls]
    return {"id": number, "query": made.spoken[0], "answers": json.dumps(answers), "tools": json.dumps(tools)}


def _bare(function: Row, optional: bool) -> Row:
    parameters = {
        name: {"type": _XLAM_TYPES[of["type"]], "description": of["description"]}
        for name, of in function["parameters"]["properties"].items()
    }
    if optional:
        last = parameters[list(parameters)[-1]]
        last |= {"type": f"{last['type']}, optional", "default": ""}
    return {"name": function["name"], "description": function["description"], "parameters": parameters}


def metamath(made: Conversation, original: str, kind: str) -> Row:
    """Variants of one question share `original_question`."""
    answer = f"{made.messages[-1]['reasoning_content']}\n#### {made.answer}\nThe answer is: {made.answer}"
    return {"query": made.spoken[0], "response": answer, "original_question": original, "type": kind}


def openai(made: Conversation, *, parts: bool = False, text_tools: bool = False) -> Row:
    """Messages and tools; `parts` writes questions as lists of text parts, `text_tools` the tools as a string."""
    messages = [dict(m) for m in made.messages]
    for message in messages:
        if parts and message["role"] == "user":
            first, space, rest = message["content"].partition(" ")
            message["content"] = [{"type": "text", "text": first + space}, {"type": "text", "text": rest}]
    return {"messages": messages, "tools": json.dumps(made.tools) if made.tools and text_tools else made.tools}


def _calls(message: Message) -> list[dict[str, str]]:
    """Name and arguments of a turn's calls."""
    return [call["function"] for call in message.get("tool_calls") or ()]
