"""Batching must not be seen in any answer: whatever else runs, whenever it came, each row is as if it ran alone."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests
import torch
from embedded_cases import PROMPT, Client

from ray_jobs.target.embedded import sampling
from ray_jobs.target.embedded.cache import SlotCache
from ray_jobs.target.embedded.engine import Engine, EngineError, grouped
from ray_jobs.target.embedded.jobs import Job
from ray_jobs.target.embedded.model import SlotModel
from ray_jobs.target.embedded.sampling import Row, SamplingParams
from ray_jobs.target.embedded.vocabulary import Vocabulary

Reference = Callable[[list[int], int], list[int]]


def _prompts(count: int, seed: int = 1, longest: int = 40) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(20, 500) for _ in range(draw.randrange(1, longest))] for _ in range(count)]


def test_greedy_equals_transformers_with_staggered_arrivals(client: Client, reference: Reference) -> None:
    prompts = _prompts(16)
    lengths = [random.Random(i).randrange(1, 40) for i in range(len(prompts))]

    def ask(index: int) -> list[int]:
        time.sleep(0.015 * index)
        return client.greedy(prompts[index], lengths[index])["output_ids"]

    with ThreadPoolExecutor(len(prompts)) as pool:
        got = list(pool.map(ask, range(len(prompts))))
    assert got == [reference(prompt, new) for prompt, new in zip(prompts, lengths, strict=True)]


@pytest.mark.parametrize("kind", ["qwen3", "gpt2", "mistral_sliding", "gemma2"])
def test_other_decoders(kind: str, tmp_path: Path) -> None:
    model = _other_model(kind)
    model.save_pretrained(tmp_path)
    ours = SlotModel(tmp_path, dtype="float32", max_rows=8, max_tokens=8 * 128)
    engine = Engine(ours, Vocabulary(None, frozenset()), max_running=8)
    prompts = _prompts(6, longest=20)
    params = SamplingParams(max_new_tokens=12, temperature=0)
    futures = engine.submit([Job(str(i), prompt, params, 0) for i, prompt in enumerate(prompts)])
    got = [future.result(60).output_ids for future in futures]
    engine.close()
    for prompt, ids in zip(prompts, got, strict=True):
        made = model.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False, eos_token_id=None)
        assert ids == made[0, len(prompt) :].tolist()


def test_bfloat16_arithmetic(client: Client, model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of a CPU that multiplies in bfloat16, also where this one does not."""
    monkeypatch.setattr("ray_jobs.target.in_process.compute_dtype", lambda dtype: dtype)
    monkeypatch.setattr("ray_jobs.target.embedded.model.SMALL_PARAMETERS", 0)
    ours = SlotModel(model_folder, dtype="bfloat16", max_rows=4)
    assert ours.model.dtype is torch.bfloat16
    engine = Engine(ours, client.server.engine.vocabulary, max_running=4)
    params = SamplingParams(max_new_tokens=5, temperature=0, ignore_eos=True)
    jobs = [Job(str(i), prompt, params, 0, hidden=True) for i, prompt in enumerate(_prompts(6))]
    for job, future in zip(jobs, engine.submit(jobs), strict=True):
        outcome = future.result(60)
        assert len(outcome.output_ids) == 5
        assert outcome.hidden[0].shape == (len(job.prompt), 64)
        assert torch.equal(outcome.hidden[0], outcome.hidden[0].to(torch.bfloat16).float())
    engine.close()


def _other_model(kind: str) -> Any:
    from transformers import (
        Gemma2Config,
        Gemma2ForCausalLM,
        GPT2Config,
        GPT2LMHeadModel,
        MistralConfig,
        MistralForCausalLM,
        Qwen3Config,
        Qwen3ForCausalLM,
    )

    shape: dict[str, Any] = {
        "vocab_size": 512,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 256,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
        "initializer_range": 0.2,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        if kind == "gpt2":
            return GPT2LMHeadModel(
                GPT2Config(vocab_size=512, n_embd=32, n_layer=3, n_head=4, n_positions=256, initializer_range=0.2)
            ).eval()
        if kind == "qwen3":
            return Qwen3ForCausalLM(Qwen3Config(**shape)).eval()
        if kind == "gemma2":
            config = Gemma2Config(
                **shape,
                sliding_window=8,
                attn_logit_softcapping=0.5,
                final_logit_softcapping=2.0,
                query_pre_attn_scalar=1,
            )
            config._attn_implementation = "eager"
            return Gemma2ForCausalLM(config).eval()
        return MistralForCausalLM(MistralConfig(**shape, sliding_window=8)).eval()


def test_seeded_draws_do_not_depend_on_the_batch(client: Client) -> None:
    parameters = {"temperature": 1.0, "top_p": 0.9, "top_k": 50, "max_new_tokens": 24, "ignore_eos": True}
    body = {"input_ids": PROMPT, "sampling_params": {**parameters, "sampling_seed": 11}}
    alone = client.generate(body)["output_ids"]
    others = [{"input_ids": prompt, "sampling_params": parameters} for prompt in _prompts(9, seed=2)]
    with ThreadPoolExecutor(10) as pool:
        crowd = list(pool.map(client.generate, [*others[:5], body, *others[5:]]))
    assert crowd[5]["output_ids"] == alone
    other_seed = {"input_ids": PROMPT, "sampling_params": {**parameters, "sampling_seed": 12}}
    assert client.generate(other_seed)["output_ids"] != alone
    # without a seed every call is another draw
    unseeded = {"input_ids": PROMPT, "sampling_params": parameters}
    assert client.generate(unseeded)["output_ids"] != client.generate(unseeded)["output_ids"]


def test_draws_follow_the_distribution() -> None:
    logits = torch.tensor([2.0, 1.0, 0.5, -1.0, -3.0]).repeat(4000, 1)
    for settings in ({}, {"top_p": 0.8}, {"top_k": 2}, {"min_p": 0.3}, {"temperature": 2.0, "top_k": 4}):
        params = SamplingParams(**settings)  # type: ignore[reportArgumentType]
        rows = [Row(params, seed, [], frozenset()) for seed in range(len(logits))]
        counts = torch.bincount(sampling.choose(logits, rows), minlength=5) / len(logits)
        torch.testing.assert_close(counts, _wanted(logits[0], params), atol=0.03, rtol=0)


def _wanted(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    wanted = (logits / params.temperature).softmax(-1)
    before = wanted.cumsum(0) - wanted
    keep = (before <= params.top_p) & (wanted >= params.min_p * wanted[0])
    if params.top_k > 0:
        keep &= torch.arange(len(logits)) < params.top_k
    return wanted * keep / (wanted * keep).sum()


def test_wide_nucleus_is_drawn_from_the_whole_vocabulary() -> None:
    """Where the likeliest ids do not reach top_p, the row is sorted whole; the draw is the same as a full sort's."""
    torch.manual_seed(0)
    logits = torch.randn(6, 5000) * 0.3
    rows = [Row(SamplingParams(top_p=0.9), seed, [], frozenset()) for seed in range(6)]
    got = sampling.choose(logits, rows)
    old = sampling.TOP_FIRST
    try:
        sampling.TOP_FIRST = 5000
        assert torch.equal(sampling.choose(logits, rows), got)
    finally:
        sampling.TOP_FIRST = old


def test_soak_answers_every_request_once(client: Client, reference: Reference) -> None:
    prompts = _prompts(96, seed=5, longest=60)
    lengths = [random.Random(100 + i).randrange(1, 30) for i in range(len(prompts))]
    seen: list[str] = []
    lock = threading.Lock()

    def ask(index: int) -> list[int]:
        reply = client.generate(
            {
                "input_ids": prompts[index],
                "rid": f"soak-{index}",
                "return_hidden_states": index % 16 == 0,
                "sampling_params": {"temperature": 0, "max_new_tokens": lengths[index]},
            }
        )
        with lock:
            seen.append(reply["meta_info"]["id"])
        return reply["output_ids"]

    with ThreadPoolExecutor(32) as pool:
        got = list(pool.map(ask, range(len(prompts))))
    assert sorted(seen) == sorted(f"soak-{index}" for index in range(len(prompts)))
    for index in range(0, len(prompts), 8):
        assert got[index] == reference(prompts[index], lengths[index])
    assert client.server.engine.model.cache.lengths == []
    assert client.server.engine.load()["waiting"] == 0


def test_requests_wait_when_there_is_no_room(client: Client, model_folder: Path, reference: Reference) -> None:
    ours = SlotModel(model_folder, dtype="float32", max_rows=4, max_tokens=100)
    engine = Engine(ours, client.server.engine.vocabulary, max_running=4)
    prompts = _prompts(8, seed=9, longest=20)
    params = SamplingParams(max_new_tokens=10, temperature=0)
    futures = engine.submit([Job(str(i), prompt, params, 0) for i, prompt in enumerate(prompts)])
    for prompt, future in zip(prompts, futures, strict=True):
        assert future.result(60).output_ids == reference(prompt, 10)
    assert ours.cache.rows * ours.cache.capacity <= 4 * 64
    # what can never fit is cut to the room there is
    whole = engine.submit([Job("w", [5] * 30, SamplingParams(max_new_tokens=None, ignore_eos=True), 1)])[0].result(60)
    assert whole.finish_reason == {"type": "length", "length": 68}
    engine.close()
    with pytest.raises(EngineError):
        engine.submit([Job("late", [5], params, 0)])


def test_abort_answers_with_what_there_is(client: Client) -> None:
    body = {
        "input_ids": PROMPT,
        "rid": "ab1",
        "sampling_params": {"temperature": 0, "max_new_tokens": 1900, "ignore_eos": True},
    }
    with ThreadPoolExecutor(2) as pool:
        victim = pool.submit(client.generate, body)
        _wait(lambda: client.server.engine.load()["tokens"] > 20)
        again = client.post("/generate", body)
        assert (again.status_code, again.json()["error"]["message"]) == (400, "Duplicate request ID detected: ab1")
        reply = client.post("/abort_request", {"rid": "ab1"})
        assert (reply.status_code, reply.content) == (200, b"")
        done = victim.result(30)
    assert done["meta_info"]["finish_reason"] == {
        "type": "abort",
        "message": "Aborted",
        "status_code": None,
        "err_type": None,
    }
    assert 0 < len(done["output_ids"]) < 1900
    assert done["meta_info"]["completion_tokens"] == len(done["output_ids"])
    for harmless in ({"rid": "does-not-exist"}, {}, {"abort_all": False}):
        assert client.post("/abort_request", harmless).status_code == 200


def test_abort_all_ends_running_and_waiting(client: Client) -> None:
    parameters = {"temperature": 0, "max_new_tokens": 1900, "ignore_eos": True}
    body = {"input_ids": [PROMPT] * 60, "sampling_params": parameters}
    with ThreadPoolExecutor(1) as pool:
        victim = pool.submit(client.generate, body)
        _wait(lambda: client.server.engine.load()["tokens"] > 48 * len(PROMPT))
        client.post("/abort_request", {"abort_all": True})
        done = victim.result(30)
    assert {reply["meta_info"]["finish_reason"]["type"] for reply in done} == {"abort"}
    messages = {reply["meta_info"]["finish_reason"]["message"] for reply in done}
    assert messages == {"Aborted", "Abort before prefill"}
    _wait(lambda: client.server.engine.load()["running"] == 0)


def test_client_that_goes_away_frees_its_row(client: Client) -> None:
    parameters = {"max_new_tokens": 1900, "ignore_eos": True}
    with pytest.raises(requests.Timeout):
        requests.post(
            client.url + "/generate", json={"input_ids": PROMPT, "sampling_params": parameters}, timeout=(5, 0.3)
        )
    _wait(lambda: client.server.engine.load()["running"] == 0 and not client.server.engine.model.cache.lengths)


def test_dead_engine_fails_all_jobs_and_health(model_folder: Path, client: Client) -> None:
    from ray_jobs.target.embedded import serving
    from ray_jobs.target.embedded.server import Server

    ours = SlotModel(model_folder, dtype="float32", max_rows=4, max_tokens=4096)
    engine = Engine(ours, client.server.engine.vocabulary, max_running=4)
    with serving.listening(Server(client.server.settings, engine)) as url:

        def broken(*_args: Any, **_kwargs: Any) -> Any:
            raise RuntimeError("out of memory")

        ours.decode = broken  # type: ignore[method-assign]
        body = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 5, "ignore_eos": True}}
        reply = requests.post(url + "/generate", json=body, timeout=30)
        assert reply.status_code == 500
        assert "out of memory" in reply.json()["error"]["message"]
        for path in ("/health", "/health_generate"):
            assert requests.get(url + path, timeout=30).status_code == 503


def test_cache_keeps_rows_together() -> None:
    """Random arrivals and ends; every row must read back exactly what was written for it."""
    draw = random.Random(4)
    cache = SlotCache(2, max_rows=6, max_tokens=6 * 256)
    rows: list[tuple[int, int]] = []
    names = iter(range(1, 10_000))

    def states(batch: list[int], width: int) -> torch.Tensor:
        return torch.tensor(batch, dtype=torch.float32)[:, None, None, None].expand(len(batch), 2, width, 3)

    for _ in range(200):
        if len(rows) < 6 and draw.random() < 0.4:
            new = [(next(names), draw.randrange(1, 40)) for _ in range(draw.randrange(1, 7 - len(rows)))]
            cache.begin_prefill([length for _, length in new])
            prefilled = states([name for name, _ in new], max(length for _, length in new))
            for layer in range(2):
                cache.update(prefilled, prefilled + 0.5, layer)
            rows.extend(new)
        elif rows and max(length for _, length in rows) < 200:
            positions = cache.begin_decode()
            assert positions.tolist() == [length for _, length in rows]
            rows = [(name, length + 1) for name, length in rows]
            one = states([name for name, _ in rows], 1)
            for layer in range(2):
                keys, values = cache.update(one, one + 0.5, layer)
                for row, (name, length) in enumerate(rows):
                    assert (keys[row, :, :length] == name).all()
                    assert (values[row, :, :length] == name + 0.5).all()
        if rows and draw.random() < 0.25:
            row = draw.randrange(len(rows))
            cache.remove(row)
            rows[row] = rows[-1]
            rows.pop()
        assert cache.lengths == [length for _, length in rows]


def test_groups_of_like_length_waste_little() -> None:
    items = [[0] * length for length in (3, 500, 4, 480, 30, 31, 510, 5)]
    groups = grouped(items, len)
    assert sorted(len(one) for group in groups for one in group) == sorted(map(len, items))
    padded = sum(len(group) * max(map(len, group)) for group in groups)
    assert padded <= 1.25 * sum(map(len, items)) + 32 * len(groups)


def _wait(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.01)
