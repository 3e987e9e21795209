"""Pausing, continuing and flushing against a real 0.5.23 server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import requests
from embedded_cases import PROMPT, Client

PAUSED = {"message": "Generation paused successfully.", "status": "ok"}
CONTINUED = {"message": "Generation continued successfully.", "status": "ok"}
FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. "
    "(When there are running or waiting requests, the operation will not be performed.)\n"
)
LONG = {"temperature": 0, "max_new_tokens": 1500, "ignore_eos": True}


@pytest.fixture(autouse=True)
def continued(client: Client) -> Iterator[None]:
    """A test that fails must not leave the server of the others paused."""
    yield
    client.post("/continue_generation", {})
    client.post("/abort_request", {"abort_all": True})
    _wait(lambda: client.server.engine.load()["running"] == 0)


def _start(client: Client, pool: ThreadPoolExecutor, rid: str, new: int = 1500) -> Future[Any]:
    body = {"input_ids": PROMPT, "rid": rid, "sampling_params": {**LONG, "max_new_tokens": new}}
    future = pool.submit(client.generate, body)
    _wait(lambda: client.server.engine.load()["tokens"] > len(PROMPT) + 5)
    return future


def _status(client: Client, path: str) -> int:
    return requests.get(client.url + path, timeout=30).status_code


@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_running_jobs_go_on_where_they_were(client: Client, mode: str) -> None:
    whole = client.greedy(PROMPT, 400, ignore_eos=True)["output_ids"]
    with ThreadPoolExecutor(2) as pool:
        running = _start(client, pool, f"p-{mode}", new=400)
        reply = client.post("/pause_generation", {"mode": mode})
        assert (reply.status_code, reply.json()) == (200, PAUSED)
        before = client.server.engine.load()
        late = pool.submit(client.greedy, [4, 300], 3)
        time.sleep(0.3)
        after = client.server.engine.load()
        assert (before["tokens"], before["rate"]) == (after["tokens"], after["rate"])
        assert (after["running"], after["waiting"]) == ((1, 1) if mode == "in_place" else (0, 2))
        assert not running.done()
        assert not late.done()
        assert [_status(client, path) for path in ("/health", "/health_generate")] == [503, 503]
        flushed = client.post("/flush_cache", {})
        assert (flushed.status_code, flushed.text) == (
            (400, "Flush cache failed.\n") if mode == "in_place" else (200, FLUSHED)
        )
        reply = client.post("/continue_generation", {})
        assert (reply.status_code, reply.json()) == (200, CONTINUED)
        done = running.result(60)
        assert len(late.result(60)["output_ids"]) > 0
    assert done["meta_info"]["num_retractions"] == (1 if mode == "retract" else 0)
    assert done["meta_info"]["finish_reason"] == {"type": "length", "length": 400}
    assert len(done["output_ids"]) == 400
    if mode == "in_place":
        assert done["output_ids"] == whole
    assert _status(client, "/health") == 200


def test_hidden_states_and_logprobs_survive_a_retraction(client: Client) -> None:
    body = {"input_ids": PROMPT, "return_hidden_states": True, "return_logprob": True, "logprob_start_len": 0}
    body["sampling_params"] = {**LONG, "max_new_tokens": 300}
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(client.generate, body)
        _wait(lambda: client.server.engine.load()["tokens"] > len(PROMPT) + 5)
        client.post("/pause_generation", {"mode": "retract"})
        client.post("/continue_generation", {})
        meta = running.result(60)["meta_info"]
    assert meta["num_retractions"] == 1
    assert len(meta["hidden_states"][0]) == len(PROMPT)
    assert len(meta["hidden_states"]) == len(meta["output_token_logprobs"]) == 300
    assert {len(row) for row in meta["hidden_states"][1:]} == {len(meta["hidden_states"][0][0])}
    assert len(meta["input_token_logprobs"]) == len(PROMPT)


def test_abort_mode_ends_what_runs_and_holds_what_comes(client: Client) -> None:
    with ThreadPoolExecutor(2) as pool:
        running = _start(client, pool, "p-abort")
        assert client.post("/pause_generation", {"mode": "abort"}).json() == PAUSED
        done = running.result(10)
        assert done["meta_info"]["finish_reason"]["type"] == "abort"
        assert 0 < len(done["output_ids"]) < 1500
        late = pool.submit(client.greedy, PROMPT, 3)
        time.sleep(0.3)
        assert not late.done()
        assert _status(client, "/health") == 503
        assert requests.get(client.url + "/flush_cache", timeout=30).status_code == 200
        client.post("/continue_generation", {})
        assert len(late.result(30)["output_ids"]) == 3


def test_abort_while_paused_is_answered_at_once(client: Client) -> None:
    with ThreadPoolExecutor(1) as pool:
        running = _start(client, pool, "p-inner")
        client.post("/pause_generation", {"mode": "in_place"})
        client.post("/abort_request", {"rid": "p-inner"})
        assert running.result(10)["meta_info"]["finish_reason"]["type"] == "abort"
        assert client.server.engine.model.cache.lengths == []


def test_bodies_of_pause_and_continue(client: Client) -> None:
    assert client.post("/pause_generation", {}).json() == PAUSED
    assert client.post("/continue_generation", {}).json() == CONTINUED
    wrong = client.post("/pause_generation", {"mode": "zzz"})
    assert (wrong.status_code, wrong.json()["type"]) == (400, "Bad Request")
    assert "Input should be 'abort', 'retract' or 'in_place'" in wrong.json()["message"]
    assert wrong.json()["message"].startswith("2 validation errors:")
    for path in ("/pause_generation", "/continue_generation"):
        nothing = requests.post(client.url + path, timeout=30)
        assert nothing.status_code == 400
        assert (
            "{'type': 'missing', 'loc': ('body',), 'msg': 'Field required', 'input': None}" in nothing.json()["message"]
        )
    assert _status(client, "/health") == 200


def test_flush_waits_for_running_jobs_if_told_to(client: Client) -> None:
    idle = requests.post(client.url + "/flush_cache", timeout=30)
    assert (idle.status_code, idle.text) == (200, FLUSHED)
    with ThreadPoolExecutor(2) as pool:
        running = _start(client, pool, "flush")
        busy = requests.post(client.url + "/flush_cache", timeout=30)
        assert (busy.status_code, busy.text) == (400, "Flush cache failed.\n")
        waiting = pool.submit(requests.post, client.url + "/flush_cache?timeout=60", timeout=70)
        assert running.result(60)["meta_info"]["finish_reason"]["type"] == "length"
        assert waiting.result(70).status_code == 200


def test_loads_have_the_recorded_keys(client: Client) -> None:
    with ThreadPoolExecutor(1) as pool:
        running = _start(client, pool, "load")
        whole = requests.get(client.url + "/v1/loads", timeout=30).json()
        old = requests.get(client.url + "/get_load", timeout=30).json()
        client.post("/abort_request", {"rid": "load"})
        running.result(30)
    assert list(whole) == ["timestamp", "version", "accelerator", "num_accelerators", "loads"]
    [rank] = whole["loads"]
    assert list(rank) == LOAD_KEYS
    assert (rank["num_running_reqs"], rank["num_waiting_reqs"]) == (1, 0)
    assert rank["num_used_tokens"] > len(PROMPT)
    assert list(rank["queues"]) == ["waiting", "grammar", "paused", "retracted", "prealloc_ready"]
    assert [one["num_reqs"] for one in old] == [1]


LOAD_KEYS = [
    *("timestamp", "dp_rank", "num_running_reqs", "num_waiting_reqs", "num_waiting_uncached_tokens"),
    *("num_used_tokens", "num_total_tokens", "num_active_tokens", "num_prealloc_ready_tokens"),
    *("max_total_num_tokens", "max_running_requests", "token_usage", "gen_throughput", "cache_hit_rate"),
    *("utilization", "total_prefill_uncached_tokens", "total_prefill_busy_us", "decode_moments", "memory"),
    *("disaggregation", "queues"),
]


def _wait(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.005)
