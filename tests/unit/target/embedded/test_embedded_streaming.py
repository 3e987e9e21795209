"""Streams of /generate against those of a real 0.5.23 server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests
from embedded_cases import PROMPT, Client
from test_embedded_protocol import META_KEYS

from ray_jobs.target.embedded import serving
from ray_jobs.target.embedded.faults import Faults
from ray_jobs.target.embedded.server import Server

PART_KEYS = [key for key in META_KEYS if key not in ("weight_versions", "e2e_latency", "response_sent_to_client_ts")]


def events(reply: requests.Response) -> Iterator[str]:
    """The data of each event; anything else between them is an error."""
    for line in reply.iter_lines():
        if line:
            assert line.startswith(b"data: "), line
            yield line.removeprefix(b"data: ").decode()


def stream(client: Client, body: dict[str, Any], path: str = "/generate") -> list[dict[str, Any]]:
    """The events of a stream that must end as it should."""
    with client.post(path, {**body, "stream": True}, stream=True) as reply:
        assert reply.status_code == 200, reply.text
        assert reply.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        *found, done = events(reply)
    assert done == "[DONE]"
    return [json.loads(one) for one in found]


def test_ids_and_text_grow_to_what_a_whole_reply_holds(client: Client) -> None:
    body = {"input_ids": PROMPT, "sampling_params": {"temperature": 0, "max_new_tokens": 40}}
    whole = client.generate(body)
    found = stream(client, body)
    assert len(found) > 3
    for event in found:
        ids = event["output_ids"]
        assert ids == whole["output_ids"][: len(ids)]
        assert event["meta_info"]["completion_tokens"] == len(ids)
        assert whole["text"].startswith(event["text"])
    sizes = [len(event["output_ids"]) for event in found]
    assert sizes == sorted(set(sizes))
    assert (found[-1]["output_ids"], found[-1]["text"]) == (whole["output_ids"], whole["text"])


def test_parts_have_the_recorded_keys_in_their_order(client: Client) -> None:
    found = stream(
        client, {"input_ids": PROMPT, "rid": "st1", "sampling_params": {"temperature": 0, "ignore_eos": True}}
    )
    first, *middle, last = found
    assert len(middle) > 1
    assert all(list(event) == ["text", "output_ids", "meta_info"] for event in found)
    assert list(first["meta_info"]) == [*PART_KEYS, "response_sent_to_client_ts"]
    assert all(list(event["meta_info"]) == PART_KEYS for event in middle)
    assert list(last["meta_info"]) == META_KEYS
    assert {event["meta_info"]["id"] for event in found} == {"st1"}
    assert all(event["meta_info"]["finish_reason"] is None for event in [first, *middle])
    assert last["meta_info"]["finish_reason"] == {"type": "length", "length": 128}
    sent = "response_sent_to_client_ts"
    assert first["meta_info"][sent] == last["meta_info"][sent]


def test_prompts_of_a_batch_are_told_apart_by_index(client: Client) -> None:
    body = {"input_ids": [[4, 300], [5, 301], [6, 302]], "sampling_params": {"temperature": 0, "max_new_tokens": 9}}
    whole = client.generate(body)
    found = stream(client, body)
    assert all(list(event) == ["text", "output_ids", "meta_info", "index"] for event in found)
    for index, reply in enumerate(whole):
        own = [event for event in found if event["index"] == index]
        assert [event["meta_info"]["finish_reason"] is None for event in own] == [True] * (len(own) - 1) + [False]
        assert (own[-1]["output_ids"], own[-1]["text"]) == (reply["output_ids"], reply["text"])
    alone = stream(client, {**body, "input_ids": [[4, 300]]})
    assert alone[-1]["index"] == 0


def test_a_stop_string_is_not_shown_before_it_is_cut(client: Client) -> None:
    plain = client.greedy(PROMPT, 30, ignore_eos=True)["text"]
    clean = next(
        i for i in range(4, len(plain) - 4) if plain[i : i + 4].isascii() and plain[i : i + 4] not in plain[:i]
    )
    stop = plain[clean : clean + 4]
    parameters = {"temperature": 0, "max_new_tokens": 30, "ignore_eos": True, "stop": [stop]}
    found = stream(client, {"input_ids": PROMPT, "sampling_params": parameters})
    assert found[-1]["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert found[-1]["text"] == plain[:clean]
    assert all(plain[:clean].startswith(event["text"]) for event in found)


def test_logprobs_and_hidden_states_are_repeated(client: Client) -> None:
    body = {"input_ids": PROMPT, "return_logprob": True, "top_logprobs_num": 2, "return_hidden_states": True}
    body["sampling_params"] = {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}
    for event in stream(client, body):
        meta, ids = event["meta_info"], event["output_ids"]
        assert [one[1] for one in meta["output_token_logprobs"]] == ids
        assert len(meta["output_top_logprobs"]) == meta["output_token_logprobs_length"] == len(ids)
        assert len(meta["hidden_states"][0]) == len(PROMPT)
        assert len(meta["hidden_states"]) == len(ids)


@pytest.mark.parametrize("value", [-1, -0.5])
def test_wrong_values_are_an_event(client: Client, value: float) -> None:
    found = stream(client, {"input_ids": [1], "sampling_params": {"temperature": value}})
    message = f"temperature must be a non-negative finite number, got {value}."
    error = {"message": message, "type": "invalid_request_error", "code": 400, "retryable": False}
    assert found == [{"error": error}]


def test_wrong_types_are_a_status(client: Client) -> None:
    reply = client.post("/generate", {"input_ids": ["a"], "stream": True})
    assert (reply.status_code, reply.json()["type"]) == (400, "Bad Request")
    unknown = client.post("/generate", {"input_ids": [1], "stream": True, "sampling_params": {"foo": 1}})
    assert unknown.status_code == 400


def test_abort_ends_a_stream_with_its_event(client: Client) -> None:
    parameters = {"temperature": 0, "max_new_tokens": 1900, "ignore_eos": True}
    body = {"input_ids": PROMPT, "rid": "st2", "stream": True, "sampling_params": parameters}
    with client.post("/generate", body, stream=True) as reply:
        found = events(reply)
        for _ in range(3):
            assert json.loads(next(found))["meta_info"]["finish_reason"] is None
        assert client.post("/abort_request", {"rid": "st2"}).status_code == 200
        *_, last, done = found
    assert done == "[DONE]"
    ended = json.loads(last)
    reason = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
    assert ended["meta_info"]["finish_reason"] == reason
    assert 3 <= len(ended["output_ids"]) < 1900


@pytest.mark.parametrize("path", ["/generate", "/v1/chat/completions"])
def test_a_reader_that_goes_away_frees_its_row(client: Client, path: str) -> None:
    engine = client.server.engine
    body: dict[str, Any] = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 1900, "ignore_eos": True}}
    if path != "/generate":
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1800, "ignore_eos": True}
    with client.post(path, {**body, "stream": True}, stream=True) as reply:
        next(events(reply))
        assert engine.load()["running"] == 1
    _wait(lambda: engine.load()["running"] == 0 and not engine.model.cache.lengths)


@pytest.mark.parametrize("fault", ["wrong_count", "abort", "malformed"])
def test_faults_reach_the_last_event(client: Client, fault: str) -> None:
    faulty = Server(client.server.settings, client.server.engine, Faults(**{f"{fault}_share": 1}))  # type: ignore[arg-type]
    body = {"input_ids": PROMPT, "stream": True, "sampling_params": {"temperature": 0, "max_new_tokens": 6}}
    with (
        serving.listening(faulty) as url,
        requests.post(url + "/generate", json=body, timeout=30, stream=True) as reply,
    ):
        found = list(events(reply))
    if fault == "malformed":
        with pytest.raises(ValueError, match=r".+"):
            json.loads(found[-1])
        return
    last = json.loads(found[-2])
    if fault == "abort":
        assert last["meta_info"]["finish_reason"]["type"] == "abort"
    else:
        assert last["meta_info"]["completion_tokens"] == len(last["output_ids"]) + 1


def _wait(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.01)
