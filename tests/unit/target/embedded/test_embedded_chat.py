"""Chats against those of a real 0.5.23 server that was started without a reasoning parser."""

from __future__ import annotations

from typing import Any

import pytest
import requests
from embedded_cases import Client
from test_embedded_streaming import stream

from ray_jobs.target.embedded import serving
from ray_jobs.target.embedded.replies import Settings
from tests.models import IDS

PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "What is two plus two?"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
BODY_KEYS = ["id", "object", "created", "model", "choices", "usage", "metadata"]
CHOICE_KEYS = ["index", "message", "logprobs", "finish_reason", "matched_stop"]
CHUNK_KEYS = ["id", "object", "created", "model", "choices"]
DELTA_CHOICE_KEYS = ["index", "delta", "logprobs", "finish_reason", "matched_stop"]
USAGE_KEYS = [
    "prompt_tokens",
    "total_tokens",
    "completion_tokens",
    "prompt_tokens_details",
    "reasoning_tokens",
    "completion_tokens_details",
]


def chat(client: Client, **body: Any) -> Any:
    reply = client.post(PATH, {"messages": HELLO, "temperature": 0, "max_tokens": 60, **body})
    assert reply.status_code == 200, reply.text
    return reply.json()


def rendered(client: Client, messages: list[dict[str, Any]], **options: Any) -> list[int]:
    tokenizer = client.server.engine.vocabulary.tokenizer
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, **options)["input_ids"]


def test_answer_has_the_recorded_shape(client: Client) -> None:
    body = chat(client, model="any-name")
    assert list(body) == BODY_KEYS
    assert (body["object"], body["model"]) == ("chat.completion", "any-name")
    [choice] = body["choices"]
    assert list(choice) == CHOICE_KEYS
    assert list(choice["message"]) == ["role", "content", "reasoning_content"]
    assert choice["message"]["role"] == "assistant"
    assert list(body["usage"]) == USAGE_KEYS
    count = body["usage"]["completion_tokens"]
    assert body["usage"]["total_tokens"] == count + body["usage"]["prompt_tokens"]
    versions = [{"version": "default", "start": 0, "end": count}]
    assert body["metadata"] == {"weight_version": "default", "weight_versions": versions}
    assert chat(client)["model"] == "default"


def test_the_thought_is_in_the_content_and_reasoning_is_null(client: Client) -> None:
    """What a client that trusts `reasoning_content` falls for: the thought is there, in another place."""
    asked = ([{"role": "user", "content": f"question {number}"}] for number in range(20))
    options = {"max_tokens": 400, "skip_special_tokens": False, "return_token_ids": True}
    body = next(
        body
        for body in (chat(client, messages=messages, **options) for messages in asked)
        if IDS["</think>"] in body["choices"][0]["response_token_ids"][1:]
    )
    [choice] = body["choices"]
    message = choice["message"]
    assert message["reasoning_content"] is None
    thought, marker, _ = message["content"].partition("</think>")
    assert thought
    assert marker
    assert body["usage"]["reasoning_tokens"] == 0


def test_the_same_ids_as_generate_on_the_rendered_prompt(client: Client) -> None:
    ids = rendered(client, HELLO)
    plain = client.greedy(ids, 60)
    body = chat(client, return_token_ids=True, return_meta_info=True, rid="chat-1")
    [choice] = body["choices"]
    assert list(choice) == [*CHOICE_KEYS, "prompt_token_ids", "response_token_ids", "meta_info"]
    assert (choice["prompt_token_ids"], choice["response_token_ids"]) == (ids, plain["output_ids"])
    assert choice["message"]["content"] == plain["text"]
    assert body["id"] == choice["meta_info"]["id"] == "chat-1"
    assert body["usage"]["prompt_tokens"] == len(ids)
    reason = plain["meta_info"]["finish_reason"]
    assert (choice["finish_reason"], choice["matched_stop"]) == (reason["type"], reason.get("matched"))
    extra = chat(client, return_input_ids_in_sglext=True, return_output_ids_in_sglext=True)
    assert list(extra) == [*BODY_KEYS, "sglext"]
    assert extra["sglext"] == {"input_ids": ids, "output_ids": [plain["output_ids"]]}


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"chat_template_kwargs": {"thinking": False}}, {"thinking": False}),
        ({"chat_template_kwargs": {"thinking": True}}, {"thinking": True}),
        ({"tools": [TOOL]}, {"tools": [TOOL]}),
        ({"tools": [TOOL], "tool_choice": "none"}, {}),
        ({"foo": 1, "separate_reasoning": False}, {}),
    ],
)
def test_the_template_gets_tools_and_switches(client: Client, fields: dict[str, Any], options: dict[str, Any]) -> None:
    [choice] = chat(client, max_tokens=1, return_token_ids=True, **fields)["choices"]
    assert choice["prompt_token_ids"] == rendered(client, HELLO, **options)


def test_history_with_tools_parts_and_thoughts(client: Client) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "so"},
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
    ]
    [choice] = chat(client, messages=messages, max_tokens=1, return_token_ids=True)["choices"]
    shown = [dict(message) for message in messages]
    parsed = {**call, "function": {"name": "add", "arguments": {"a": 1}}}
    shown[1] |= {"content": "", "tool_calls": [parsed]}
    assert choice["prompt_token_ids"] == rendered(client, shown)


def test_special_ids_are_shown_when_there_are_tools(client: Client) -> None:
    plain = chat(client, max_tokens=400, tools=[TOOL], return_token_ids=True)["choices"][0]
    specials = [i for i in plain["response_token_ids"][:-1] if i < len(IDS)]
    assert specials
    text = client.server.engine.vocabulary.token_text(specials[0])
    assert text in plain["message"]["content"]
    assert "tool_calls" not in plain["message"]


def test_stream_has_the_recorded_chunks(client: Client) -> None:
    body = {"messages": HELLO, "temperature": 0, "max_tokens": 60, "stream_options": {"include_usage": True}}
    whole = chat(client, stream_options={"include_usage": True})
    first, *middle, last, usage = stream(client, body, PATH)
    assert all(list(one) == CHUNK_KEYS for one in (first, *middle, last))
    assert list(usage) == [*CHUNK_KEYS, "usage"]
    assert {one["object"] for one in (first, *middle, last, usage)} == {"chat.completion.chunk"}
    assert len({one["id"] for one in (first, *middle, last, usage)}) == 1
    choices = [one["choices"][0] for one in (first, *middle, last)]
    assert all(list(choice) == DELTA_CHOICE_KEYS for choice in choices)
    assert choices[0]["delta"] == {"reasoning_content": None, "role": "assistant", "content": ""}
    assert len(middle) > 1
    assert all(list(choice["delta"]) == ["reasoning_content", "content"] for choice in choices[1:-1])
    assert all(choice["finish_reason"] is None for choice in choices[:-1])
    assert choices[-1]["delta"] == {"reasoning_content": None}
    ended = whole["choices"][0]
    assert "".join(choice["delta"]["content"] for choice in choices[1:-1]) == ended["message"]["content"]
    assert (choices[-1]["finish_reason"], choices[-1]["matched_stop"]) == (
        ended["finish_reason"],
        ended["matched_stop"],
    )
    assert (usage["choices"], usage["usage"]) == ([], whole["usage"])
    without = stream(client, {key: value for key, value in body.items() if key != "stream_options"}, PATH)
    assert "usage" not in without[-1]


def test_copies_are_choices(client: Client) -> None:
    body = chat(client, n=2, temperature=1, max_tokens=3, ignore_eos=True)
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert body["usage"]["completion_tokens"] == 6
    assert body["usage"]["prompt_tokens"] == len(rendered(client, HELLO))
    request = {"messages": HELLO, "n": 2, "max_tokens": 8, "ignore_eos": True}
    found = [one["choices"][0] for one in stream(client, request, PATH)]
    for index in range(2):
        own = [choice for choice in found if choice["index"] == index]
        assert own[0]["delta"]["role"] == "assistant"
        assert own[-1]["finish_reason"] == "length"


def test_lengths_and_stops(client: Client) -> None:
    long = chat(client, max_tokens=None, max_completion_tokens=7, ignore_eos=True)
    assert (long["usage"]["completion_tokens"], long["choices"][0]["finish_reason"]) == (7, "length")
    unlimited = chat(client, max_tokens=None)["choices"][0]
    assert unlimited["finish_reason"] in ("stop", "length")
    ids = chat(client, return_token_ids=True, ignore_eos=True, max_tokens=8)["choices"][0]["response_token_ids"]
    stopped = chat(client, stop_token_ids=[ids[4]])["choices"][0]
    assert (stopped["finish_reason"], stopped["matched_stop"]) == ("stop", ids[4])


def test_logprobs(client: Client) -> None:
    body = chat(client, logprobs=True, top_logprobs=2, max_tokens=3, ignore_eos=True, return_token_ids=True)
    content = body["choices"][0]["logprobs"]["content"]
    assert len(content) == 3
    for one, token in zip(content, body["choices"][0]["response_token_ids"], strict=True):
        assert list(one) == ["token", "bytes", "logprob", "top_logprobs"]
        assert one["token"] == client.server.engine.vocabulary.token_text(token)
        assert bytes(one["bytes"]).decode() == one["token"]
        assert len(one["top_logprobs"]) == 2
        # greedy: the first of the likeliest is the one that was taken
        assert one["top_logprobs"][0] == {key: one[key] for key in ("token", "bytes", "logprob")}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"messages": []}, "Messages cannot be empty."),
        ({"temperature": -1}, "temperature must be a non-negative finite number, got -1.0."),
        ({"tool_choice": "required"}, "Tools cannot be empty if tool choice is set to required."),
        ({"messages": [{"role": "root", "content": "a"}]}, "unknown role root"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_refused_with_the_recorded_body(client: Client, fields: dict[str, Any], message: str, streamed: bool) -> None:
    reply = client.post(PATH, {"messages": HELLO, "max_tokens": 4, "stream": streamed, **fields})
    error = {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": 400}
    assert (reply.status_code, reply.json()) == (400, error)


def test_too_long_is_counted_for_the_client(client: Client) -> None:
    count = len(rendered(client, HELLO))
    reply = client.post(PATH, {"messages": HELLO, "max_tokens": 9000})
    assert reply.status_code == 400
    assert f"You requested a total of {count + 9000} tokens: {count} tokens from" in reply.json()["message"]
    assert reply.json()["type"] == "BadRequestError"


@pytest.mark.parametrize(
    ("raw", "part"),
    [
        ('{"model":"m","max_tokens":4}', "{'type': 'missing', 'loc': ('body', 'messages'), 'msg': 'Field required'"),
        ('{"messages":[{"role":"zzz","content":"a"}]}', "'role' must be one of 'system', 'assistant', 'tool'"),
        ('{"messages":"a"}', "'loc': ('body', 'messages')"),
        ('{"messages":[{"role":"user","content":"a"}],"tools":[{}]}', "'loc': ('body', 'tools')"),
        ('{"messages":[{"role":"user","content":"a"}],"max_tokens":"x"}', "'loc': ('body', 'max_tokens')"),
        ('{"messages":', "json_invalid"),
        ("", "'type': 'missing'"),
    ],
)
def test_malformed_bodies_have_the_validation_shape(client: Client, raw: str, part: str) -> None:
    reply = requests.post(client.url + PATH, data=raw, timeout=60)
    body = reply.json()
    assert (reply.status_code, body["object"], body["type"], body["code"]) == (400, "error", "Bad Request", 400)
    assert part in body["message"]
    assert "POST /v1/chat/completions" in body["message"]


def test_models(client: Client) -> None:
    listed = requests.get(client.url + "/v1/models", timeout=60).json()
    [card] = listed["data"]
    assert listed["object"] == "list"
    assert list(card) == ["id", "object", "created", "owned_by", "root", "parent", "max_model_len"]
    assert (card["id"], card["max_model_len"]) == (client.server.settings.model_path, 2048)
    quoted = requests.utils.quote(card["id"], safe="")
    assert requests.get(f"{client.url}/v1/models/{quoted}", timeout=60).json()["id"] == card["id"]
    missing = requests.get(client.url + "/v1/models/nope", timeout=60)
    error = {"message": "The model 'nope' does not exist", "type": "invalid_request_error", "param": "model"}
    assert (missing.status_code, missing.json()) == (404, {"error": {**error, "code": "model_not_found"}})


def test_defaults_of_the_model_hold_for_chats_only(client: Client) -> None:
    model = client.server.engine.model.model
    model.generation_config.temperature = 1e-9
    try:
        with serving.listening(type(client.server)(Settings("m", port=0), client.server.engine)) as url:
            body = {"messages": HELLO, "max_tokens": 30, "return_token_ids": True}
            greedy = chat(client, max_tokens=30, return_token_ids=True)["choices"][0]["response_token_ids"]
            by_default = requests.post(url + PATH, json=body, timeout=60).json()
            assert by_default["choices"][0]["response_token_ids"] == greedy
    finally:
        model.generation_config.temperature = None
