"""/v1/chat/completions, the way in: from messages through the model's own template to jobs.

As a real server without reasoning parser and tool parser takes them; what no recording shows is as in its source
(`srt/entrypoints/openai/serving_chat.py`), and said so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ray_jobs.target.embedded.engine import Engine
from ray_jobs.target.embedded.protocol import Call, Limits, parse_call
from ray_jobs.target.embedded.refusals import Refusal, message_of, openai_error

PATH = "/v1/chat/completions"
ROLES = ("system", "assistant", "tool", "function", "developer", "latest_reminder", "root")
_FLOATS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
_SAME = (
    *_FLOATS,
    *("top_k", "n", "stop", "stop_token_ids", "stop_regex", "ignore_eos", "no_stop_trim", "skip_special_tokens"),
    *("logit_bias", "regex", "ebnf"),
)
"""Fields that go into the sampling parameters by their own names."""
_RENAMED = {"min_tokens": "min_new_tokens", "seed": "sampling_seed"}
_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""What the model's generation config may set for chats (source, not recorded)."""
_LOOP_OVER_PARTS = re.compile(r"for\s+\w+\s+in\s+(?:message\s*(?:\.content|\[['\"]content['\"]\])|content)\b")


@dataclass(slots=True)
class ChatCall:
    """One call, taken apart."""

    call: Call
    model: str
    stream: bool
    usage: bool
    """Whether a stream ends with a chunk of counts."""
    logprobs: bool
    token_ids: bool
    meta_info: bool
    input_ids_ext: bool
    output_ids_ext: bool


class Template:
    """The model's own chat template, applied as the server does it: marker texts in messages become marker ids."""

    def __init__(self, tokenizer: Any, defaults: dict[str, Any]) -> None:
        self.tokenizer, self.defaults = tokenizer, defaults
        source = str(getattr(tokenizer, "chat_template", None) or "")
        self._parts = bool(_LOOP_OVER_PARTS.search(source))

    @classmethod
    def of(cls, engine: Engine) -> Template:
        """The template of the tokenizer that an engine has, with its model's own sampling defaults."""
        config = engine.model.model.generation_config
        own = config.to_diff_dict() if config is not None else {}
        defaults = {name: own[name] for name in _DEFAULTS if own.get(name) is not None}
        return cls(engine.vocabulary.tokenizer, defaults)

    def render(self, body: dict[str, Any]) -> list[int]:
        """The prompt of a call.

        Raises:
            Refusal: the template does not take these messages.
        """
        messages = [self._message(message) for message in body["messages"]]
        options = dict(body.get("chat_template_kwargs") or {})
        if body.get("reasoning_effort") is not None:
            options.setdefault("reasoning_effort", body["reasoning_effort"])
        prefix = ""
        if body.get("continue_final_message") and messages[-1]["role"] == "assistant":
            prefix = messages.pop()["content"]
        try:
            made = self.tokenizer.apply_chat_template(
                messages, tools=_tools(body), tokenize=True, add_generation_prompt=True, **options
            )
        except Exception as error:  # a template is a program from outside: whatever it raises is this call's fault
            raise _refusal(str(error)) from error
        ids = made["input_ids"] if isinstance(made, Mapping) else made
        return [*ids, *(self.tokenizer.encode(prefix, add_special_tokens=False) if prefix else [])]

    def _message(self, given: dict[str, Any]) -> dict[str, Any]:
        """A message as the template gets it: no nulls but an empty content, arguments as objects."""
        message = {name: value for name, value in given.items() if value is not None}
        content = message.setdefault("content", "")
        if isinstance(content, list) and not self._parts:
            texts = [part.get("text", "") for part in content if part.get("type") == "text"]
            message["content"] = " ".join(texts)
        if message["role"] == "assistant" and "tool_calls" in message:
            message["tool_calls"] = [_with_objects(call) for call in message["tool_calls"]]
        return message


def _with_objects(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function") or {}
    if not isinstance(function.get("arguments"), str):
        return call
    try:
        return {**call, "function": {**function, "arguments": json.loads(function["arguments"])}}
    except ValueError as error:
        raise _refusal(f"tool call arguments are not JSON: {error}") from None


def _tools(body: dict[str, Any]) -> list[dict[str, Any]] | None:
    """The tools that the template shows: all, the one that `tool_choice` names, or none."""
    tools, choice = body.get("tools") or None, body.get("tool_choice", "auto")
    if tools is None or choice == "none":
        return None
    if isinstance(choice, dict):
        name = (choice.get("function") or {}).get("name")
        return [tool for tool in tools if tool["function"]["name"] == name]
    return tools


def parse_chat(body: dict[str, Any], limits: Limits, template: Template) -> ChatCall:
    """Check a body as the real server does, render it and turn it into jobs.

    Raises:
        Refusal: in the shape of this endpoint.
    """
    _check(body)
    options = body.get("stream_options") or {}
    request = {
        "input_ids": template.render(body),
        "sampling_params": _sampling(body, template.defaults),
        "rid": body.get("rid"),
        "return_logprob": bool(body.get("logprobs")),
        "top_logprobs_num": body.get("top_logprobs") or 0,
        "return_text_in_logprobs": True,
    }
    try:
        call = parse_call(request, limits, template.tokenizer.encode)
    except Refusal as refused:
        raise _refusal(message_of(refused)) from None
    return ChatCall(
        call,
        model=body.get("model") or "default",
        stream=bool(body.get("stream")),
        usage=bool(options.get("include_usage")),
        logprobs=bool(body.get("logprobs")),
        token_ids=bool(body.get("return_token_ids")),
        meta_info=bool(body.get("return_meta_info")),
        input_ids_ext=bool(body.get("return_input_ids_in_sglext")),
        output_ids_ext=bool(body.get("return_output_ids_in_sglext")),
    )


def _sampling(body: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    given = {name: body[name] for name in _SAME if body.get(name) is not None}
    made = {**defaults, **given}
    made |= {ours: body[name] for name, ours in _RENAMED.items() if body.get(name) is not None}
    for name in _FLOATS:
        if type(made.get(name)) is int:
            # quoted in messages as the float that the server reads
            made[name] = float(made[name])
    # without a limit up to the end of the context, not up to the default of /generate
    made["max_new_tokens"] = body.get("max_completion_tokens") or body.get("max_tokens")
    if body.get("tools") and body.get("tool_choice", "auto") != "none":
        # so that calls can be seen in the text (source)
        made["skip_special_tokens"] = False
    form = body.get("response_format") or {}
    required = body.get("tools") and (
        body.get("tool_choice") == "required" or isinstance(body.get("tool_choice"), dict)
    )
    if form.get("type") in ("json_schema", "json_object") or required:
        made["json_schema"] = json.dumps(form)
    return made


def _check(body: dict[str, Any]) -> None:
    """Refuse bodies that are not of the right form."""
    messages = body.get("messages")
    if messages is None:
        # the real server shows what it read, with its own default
        shown = {**body, "tool_choice": body.get("tool_choice", "none")}
        raise _invalid([{"type": "missing", "loc": ("body", "messages"), "msg": "Field required", "input": shown}])
    if not isinstance(messages, list):
        raise _wrong("messages", "list_type", "Input should be a valid list", messages)
    if not messages:
        raise _refusal("Messages cannot be empty.")
    for index, message in enumerate(messages):
        _check_message(index, message)
    for name, kind in (("chat_template_kwargs", dict), ("stream_options", dict), ("response_format", dict)):
        if body.get(name) is not None and not isinstance(body[name], kind):
            raise _wrong(name, "dict_type", "Input should be a valid dictionary", body[name])
    for name in ("max_tokens", "max_completion_tokens"):
        if body.get(name) is not None and type(body[name]) is not int:
            raise _wrong(name, "int_type", "Input should be a valid integer", body[name])
    tools = body.get("tools") or []
    if not isinstance(tools, list) or not all(_is_tool(tool) for tool in tools):
        raise _wrong("tools", "model_type", "Input should be a list of functions with names", tools)
    if body.get("tool_choice") == "required" and not tools:
        raise _refusal("Tools cannot be empty if tool choice is set to required.")


def _check_message(index: int, message: Any) -> None:
    place = ("body", "messages", index)
    if not isinstance(message, dict):
        raise _invalid([{"type": "dict_type", "loc": place, "msg": "Input should be a valid dictionary"}])
    role, content = message.get("role"), message.get("content")
    if role != "user" and not (isinstance(role, str) and role.lower() in ROLES):
        rule = f"'role' must be one of {', '.join(map(repr, ROLES))} (case-insensitive)."
        generic = {"type": "value_error", "loc": (*place, "role"), "msg": f"Value error, {rule}", "input": role}
        user = {"type": "literal_error", "loc": (*place, "role"), "msg": "Input should be 'user'", "input": role}
        raise _invalid([generic, user])
    parts = isinstance(content, list) and all(isinstance(part, dict) for part in content)
    if not (content is None or isinstance(content, str) or parts):
        raise _invalid([{"type": "string_type", "loc": (*place, "content"), "msg": "Input should be a valid string"}])


def _is_tool(tool: Any) -> bool:
    function = tool.get("function") if isinstance(tool, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def _refusal(message: str) -> Refusal:
    return Refusal(400, openai_error(message, "BadRequestError"))


def _wrong(name: str, kind: str, message: str, value: Any) -> Refusal:
    return _invalid([{"type": kind, "loc": ("body", name), "msg": message, "input": value}])


def _invalid(errors: list[dict[str, Any]]) -> Refusal:
    count = f"{len(errors)} validation error{'s' if len(errors) > 1 else ''}:"
    lines = "".join(f"\n  {error}" for error in errors)
    return Refusal(400, openai_error(f"{count}{lines}\n\n    POST {PATH} {errors}", "Bad Request"))
