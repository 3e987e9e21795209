"""Replies and errors against those of a real 0.5.23 server; the key sets and messages below were recorded there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import requests
import torch
from embedded_cases import PROMPT, Client

META_KEYS = [
    "id",
    "finish_reason",
    "prompt_tokens",
    "weight_version",
    "num_retractions",
    "reasoning_tokens",
    "completion_tokens",
    "cached_tokens",
    "weight_versions",
    "cached_tokens_details",
    "dp_rank",
    "e2e_latency",
    "response_sent_to_client_ts",
]


def test_reply_has_the_recorded_keys_in_their_order(client: Client) -> None:
    reply = client.greedy(PROMPT, 3)
    assert list(reply) == ["text", "output_ids", "meta_info"]
    meta = reply["meta_info"]
    assert list(meta) == META_KEYS
    assert meta["finish_reason"] == {"type": "length", "length": 3}
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == (len(PROMPT), 3, 0)
    assert meta["weight_versions"] == [{"version": "default", "start": 0, "end": 3}]
    assert len(meta["id"]) == 32


def test_default_length_is_128(client: Client) -> None:
    reply = client.generate({"input_ids": PROMPT, "sampling_params": {"temperature": 0, "ignore_eos": True}})
    assert reply["meta_info"]["finish_reason"] == {"type": "length", "length": 128}
    assert len(reply["output_ids"]) == 128


def test_eos_ends_stays_in_the_ids_and_leaves_the_text(client: Client) -> None:
    long = client.greedy(PROMPT, 200)
    ids = long["output_ids"]
    assert long["meta_info"]["finish_reason"] == {"type": "stop", "matched": 7}
    assert ids[-1] == 7
    assert ids.count(7) == 1
    assert "<|im_end|>" not in client.greedy(PROMPT, 200, skip_special_tokens=False)["text"]
    assert client.greedy(PROMPT, 200, skip_special_tokens=False, no_stop_trim=True)["text"].endswith("<|im_end|>")
    assert "<|im_end|>" not in client.greedy(PROMPT, 200, no_stop_trim=True)["text"]
    more = client.greedy(PROMPT, len(ids) + 2, ignore_eos=True)
    assert more["output_ids"][: len(ids)] == ids
    assert more["meta_info"]["finish_reason"]["type"] == "length"


def test_length_is_looked_at_before_the_stop_id(client: Client) -> None:
    ids = client.greedy(PROMPT, 200)["output_ids"]
    reply = client.greedy(PROMPT, len(ids))
    assert reply["output_ids"] == ids
    assert reply["meta_info"]["finish_reason"] == {"type": "length", "length": len(ids)}


def test_min_new_tokens_holds_the_stop_back(client: Client) -> None:
    ids = client.greedy(PROMPT, 200)["output_ids"]
    longer = client.greedy(PROMPT, 200, min_new_tokens=len(ids) + 3)["output_ids"]
    assert longer[: len(ids) - 1] == ids[:-1]
    assert len(longer) > len(ids)


def test_stop_token_ids(client: Client) -> None:
    ids = client.greedy(PROMPT, 20, ignore_eos=True)["output_ids"]
    reply = client.greedy(PROMPT, 20, stop_token_ids=[ids[2]])
    assert reply["output_ids"] == ids[:3]
    assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": ids[2]}
    assert reply["text"] == client.greedy(PROMPT, 2)["text"]


def test_stop_string_cuts_the_text_and_keeps_the_ids(client: Client) -> None:
    ids = client.greedy(PROMPT, 6)["output_ids"]
    stop = _ascii_piece(client, ids)
    reply = client.greedy(PROMPT, 6, stop=stop)
    assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert stop not in reply["text"]
    assert reply["output_ids"] == ids[: len(reply["output_ids"])]
    kept = client.greedy(PROMPT, 6, stop=[stop, "never"], no_stop_trim=True)
    assert stop in kept["text"]
    by_regex = client.greedy(PROMPT, 6, stop_regex=stop.replace(" ", r"\s"))
    assert by_regex["meta_info"]["finish_reason"]["matched"] == stop.replace(" ", r"\s")
    assert stop in by_regex["text"]


def _ascii_piece(client: Client, ids: list[int]) -> str:
    texts = [client.server.engine.vocabulary.token_text(one) for one in ids]
    return next(text for text in texts if text.isascii() and text.strip().isalnum())


def test_zero_new_tokens(client: Client) -> None:
    reply = client.greedy(PROMPT, 0)
    assert (reply["text"], reply["output_ids"]) == ("", [])
    assert reply["meta_info"]["finish_reason"] == {"type": "length", "length": 0}


def test_batches_come_back_in_order_with_their_own_parameters(client: Client) -> None:
    parameters = [{"temperature": 0, "max_new_tokens": 2}, {"temperature": 0, "max_new_tokens": 3}]
    body = {"input_ids": [[4, 300], [5, 301]], "rid": ["b1", "b2"], "sampling_params": parameters}
    replies = client.generate(body)
    assert [reply["meta_info"]["id"] for reply in replies] == ["b1", "b2"]
    assert [len(reply["output_ids"]) for reply in replies] == [2, 3]
    assert replies[0]["output_ids"] == client.greedy([4, 300], 2)["output_ids"]
    one = client.generate({"input_ids": [[4, 300]], "sampling_params": {"max_new_tokens": 1}})
    assert isinstance(one, list)
    assert len(one) == 1
    two = client.generate({"input_ids": [4, 300], "sampling_params": {"n": 2, "max_new_tokens": 1}})
    assert len(two) == 2


def test_text_prompts_and_prompt_ids(client: Client) -> None:
    ids = client.server.engine.vocabulary.encode("What is two plus two?")
    parameters = {"temperature": 0, "max_new_tokens": 4}
    body = {"text": "What is two plus two?", "return_prompt_token_ids": True, "sampling_params": parameters}
    reply = client.generate(body)
    assert reply["prompt_token_ids"] == ids
    assert reply["output_ids"] == client.greedy(ids, 4)["output_ids"]
    # ids win over text, unknown fields of the body are ignored
    both = client.generate({"text": "x", "input_ids": ids, "unknown": 1, "sampling_params": parameters})
    assert both["output_ids"] == reply["output_ids"]


def test_empty_prompt_beside_others_is_answered(client: Client) -> None:
    replies = client.generate({"input_ids": [[4], []], "sampling_params": {"max_new_tokens": 2, "ignore_eos": True}})
    assert [reply["meta_info"]["prompt_tokens"] for reply in replies] == [1, 0]
    assert [len(reply["output_ids"]) for reply in replies] == [2, 2]


def test_put_and_rid(client: Client) -> None:
    body = {"input_ids": PROMPT, "rid": "my-rid", "sampling_params": {"max_new_tokens": 1}}
    reply = requests.put(client.url + "/generate", json=body, timeout=60)
    assert reply.json()["meta_info"]["id"] == "my-rid"


def test_logprobs_equal_transformers(client: Client, transformer: Any) -> None:
    new = 3
    body = {
        "input_ids": PROMPT,
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": 2,
        "return_text_in_logprobs": True,
        "token_ids_logprob": [300],
        "sampling_params": {"temperature": 0, "max_new_tokens": new},
    }
    reply = client.generate(body)
    meta, ids = reply["meta_info"], PROMPT + reply["output_ids"]
    with torch.inference_mode():
        own = transformer(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
    wanted = [None] + [own[t, ids[t + 1]].item() for t in range(len(ids) - 1)]
    got = meta["input_token_logprobs"] + meta["output_token_logprobs"]
    assert [entry[1] for entry in got] == ids
    assert got[0][0] is None
    assert [entry[0] for entry in got[1:]] == pytest.approx(wanted[1:], abs=1e-4)
    assert all(isinstance(entry[2], str) for entry in got)
    assert meta["output_token_logprobs_length"] == new
    assert meta["input_top_logprobs"][0] is None
    assert meta["input_top_logprobs"][1][0][0] == pytest.approx(own[0].max().item(), abs=1e-4)
    assert [len(line) for line in meta["output_top_logprobs"]] == [2] * new
    assert meta["output_token_ids_logprobs"][0][0][:2] == [
        pytest.approx(own[len(PROMPT) - 1, 300].item(), abs=1e-4),
        300,
    ]


def test_logprobs_of_the_output_only_by_default(client: Client) -> None:
    body = {"input_ids": PROMPT, "return_logprob": True, "sampling_params": {"temperature": 0, "max_new_tokens": 2}}
    meta = client.generate(body)["meta_info"]
    assert meta["input_token_logprobs"] == []
    assert [entry[2] for entry in meta["output_token_logprobs"]] == [None, None]
    assert "input_top_logprobs" not in meta


def test_hidden_states_are_the_outputs_of_the_aux_layers(client: Client, transformer: Any) -> None:
    body = {"input_ids": PROMPT, "return_hidden_states": True, "sampling_params": {"temperature": 0}}
    body["sampling_params"]["max_new_tokens"] = 4
    body["sampling_params"]["ignore_eos"] = True
    reply = client.generate(body)
    states = reply["meta_info"]["hidden_states"]
    rows = [*states[0], *states[1:]]
    ids = PROMPT + reply["output_ids"][:-1]
    assert len(states[0]) == len(PROMPT)
    assert len(rows) == len(PROMPT) + 4 - 1
    with torch.inference_mode():
        own = transformer(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states
    layers = client.server.engine.model.aux_layers
    # entry k + 1 is the output of layer k; the last entry has the final norm applied and is not among these
    wanted = [own[layer + 1][0] for layer in layers if layer + 1 < len(own) - 1]
    width = own[0].shape[-1]
    got = torch.tensor(rows)
    assert got.shape == (len(ids), 3 * width)
    for place, part in enumerate(wanted):
        torch.testing.assert_close(got[:, place * width : (place + 1) * width], part, rtol=1e-4, atol=1e-4)


def test_hidden_states_for_some_rows_of_a_batch(client: Client) -> None:
    body = {"input_ids": [[4, 300], [5, 301, 302]], "return_hidden_states": [False, True]}
    replies = client.generate({**body, "sampling_params": {"temperature": 0, "max_new_tokens": 1}})
    assert "hidden_states" not in replies[0]["meta_info"]
    assert [len(part) for part in replies[1]["meta_info"]["hidden_states"]] == [3]
    none = client.generate(
        {"input_ids": PROMPT, "return_hidden_states": True, "sampling_params": {"max_new_tokens": 0}}
    )
    assert none["meta_info"]["hidden_states"] == []


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"input_ids": []}, "input_ids cannot be empty."),
        ({}, "Either text, input_ids or input_embeds should be provided."),
        (
            {"input_ids": [1], "sampling_params": {"temperature": -1}},
            "temperature must be a non-negative finite number, got -1.",
        ),
        ({"input_ids": [1], "sampling_params": {"top_p": 2}}, "top_p must be in (0, 1], got 2."),
        ({"input_ids": [1], "sampling_params": {"max_new_tokens": -1}}, "max_new_tokens must be at least 0, got -1."),
        (
            {"input_ids": [[1], [2]], "rid": ["x", "x"]},
            "Duplicate request IDs detected within the request: ['x']",
        ),
        (
            {"input_ids": [1], "sampling_params": {"json_schema": "{}"}},
            "Grammar-based generation (json_schema, regex, ebnf, structural_tag) is not supported when the server is "
            "launched with --grammar-backend none",
        ),
        (
            {"input_ids": [5] * 2100},
            "The input (2100 tokens) is longer than the model's context length (2048 tokens).",
        ),
        (
            {"input_ids": [5] * 2048},
            "The input (2048 tokens) is longer than the model's context length (2048 tokens).",
        ),
        (
            {"input_ids": [5] * 400, "sampling_params": {"max_new_tokens": 2000}},
            "Requested token count exceeds the model's maximum context length of 2048 tokens. You requested a total of "
            "2400 tokens: 400 tokens from the input messages and 2000 tokens for the completion. Please reduce the "
            "number of tokens in the input messages or the completion to fit within the limit.",
        ),
    ],
)
def test_refused_with_the_recorded_message(client: Client, body: dict[str, Any], message: str) -> None:
    reply = client.post("/generate", body)
    assert (reply.status_code, reply.json()) == (400, {"error": {"message": message}})


@pytest.mark.parametrize(
    "body",
    [
        {"top_logprobs_num": "a", "return_logprob": True},
        {"token_ids_logprob": [512], "return_logprob": True},
        {"token_ids_logprob": "x", "return_logprob": True},
        {"logprob_start_len": 0.5, "return_logprob": True},
        {"return_hidden_states": "last"},
        {"rid": 5},
        {"sampling_params": {"temperature": 10**400}},
        {"sampling_params": {"max_new_tokens": "a"}},
        {"sampling_params": {"stop": 5}},
        {"sampling_params": {"stop_regex": "("}},
        {"sampling_params": {"logit_bias": {"9999": 1}}},
        {"sampling_params": {"beam_width": 4}},
        {"sampling_params": [{}, {}]},
        {"sampling_params": "x"},
    ],
)
def test_wrong_fields_are_refused_before_the_engine_sees_them(client: Client, body: dict[str, Any]) -> None:
    assert client.post("/generate", {"input_ids": PROMPT, **body}).status_code == 400


def test_extreme_but_valid_fields_do_not_hurt(client: Client) -> None:
    parameters = {"max_new_tokens": 3, "min_new_tokens": 2, "stop_token_ids": [-1, 10**12], "top_k": 10**30}
    body = {"input_ids": PROMPT, "return_logprob": True, "top_logprobs_num": 10**6, "sampling_params": parameters}
    assert len(client.generate(body)["meta_info"]["output_top_logprobs"][0]) == 512
    assert client.greedy(PROMPT, 3, sampling_seed=-(10**30))["output_ids"]


def test_unknown_sampling_name_is_a_string_error(client: Client) -> None:
    reply = client.post("/generate", {"input_ids": [1], "sampling_params": {"foo": 1}})
    assert reply.status_code == 400
    assert reply.json()["error"].startswith("unknown field `foo`, expected one of `max_new_tokens`, `stop`, ")


@pytest.mark.parametrize(
    ("raw", "part"),
    [
        ('{"input_ids":', "'type': 'json_invalid', 'loc': ('body', 13), 'msg': 'JSON decode error'"),
        ('{"input_ids":["a"]}', "Value error, elements must be int or list; got str"),
        ('{"input_ids":[1.5]}', "Value error, elements must be int or list; got float"),
        ("[1]", "1 validation error"),
    ],
)
def test_malformed_bodies_have_the_validation_shape(client: Client, raw: str, part: str) -> None:
    reply = requests.post(client.url + "/generate", data=raw, timeout=60)
    body = reply.json()
    assert reply.status_code == 400
    assert list(body) == ["object", "message", "type", "param", "code"]
    assert (body["object"], body["type"], body["param"], body["code"]) == ("error", "Bad Request", None, 400)
    assert part in body["message"]


def test_unknown_path_and_method(client: Client) -> None:
    path = requests.get(client.url + "/nope", timeout=60)
    assert (path.status_code, path.json()) == (404, {"detail": "Not Found"})
    method = requests.get(client.url + "/generate", timeout=60)
    assert (method.status_code, method.json()) == (405, {"detail": "Method Not Allowed"})
    assert method.headers["Allow"] == "POST, PUT"


def test_what_the_server_says_of_itself(client: Client) -> None:
    assert (requests.get(client.url + "/health", timeout=60).status_code) == 200
    generated = requests.get(client.url + "/health_generate", timeout=60)
    assert (generated.status_code, generated.content) == (200, b"")
    for path in ("/server_info", "/get_server_info"):
        info = requests.get(client.url + path, timeout=60).json()
        assert info["disable_radix_cache"] is True
        assert (info["context_length"], info["max_running_requests"], info["dtype"]) == (2048, 48, "float32")
        assert info["enable_return_hidden_states"] is True
        assert info["aux_hidden_state_capture"] == "eagle3"
        assert info["return_aux_hidden_state_layer_ids"] == [0, 2, 5]
        assert info["max_req_input_len"] == 2042
        assert info["version"].startswith("0.5.23")
        assert info["internal_states"][0]["effective_max_running_requests_per_dp"] == 48
    for path in ("/model_info", "/get_model_info"):
        model = requests.get(client.url + path, timeout=60).json()
        assert (model["model_type"], model["weight_version"]) == ("llama", "default")
    load = requests.get(client.url + "/v1/loads", timeout=60).json()["loads"][0]
    assert (load["num_running_reqs"], load["num_waiting_reqs"], load["max_running_requests"]) == (0, 0, 48)


def test_penalties_and_bias(client: Client, reference: Callable[[list[int], int], list[int]]) -> None:
    plain = reference(PROMPT, 1)
    biased = client.greedy(PROMPT, 3, logit_bias={"400": 1000.0}, ignore_eos=True)["output_ids"]
    assert biased == [400, 400, 400]
    banned = client.greedy(PROMPT, 1, logit_bias={str(plain[0]): -1000.0})["output_ids"]
    assert banned != plain
    spread = client.greedy(PROMPT, 40, frequency_penalty=2.0, presence_penalty=2.0, ignore_eos=True)["output_ids"]
    loop = client.greedy(PROMPT, 40, ignore_eos=True)["output_ids"]
    assert len(set(spread)) > len(set(loop))
