"""Greedy answers of a small model do not depend on what else runs, to the last bit of their log-probabilities."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from embedded_cases import Client
from test_embedded_streaming import stream

from ray_jobs.core.errors import ConfigError
from ray_jobs.target.embedded import serving
from ray_jobs.target.embedded.cache import SPAN_ROWS, SlotCache
from ray_jobs.target.embedded.model import SlotModel
from ray_jobs.target.embedded.replies import Settings
from tests.models import tiny_model

SLOTS = 48


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A server of 48 slots over a model whose rounding shows: more layers and wider than the tiny one of the others."""
    folder = tiny_model(tmp_path_factory.mktemp("models") / "wide", layers=8, hidden=192, vocab=1024)
    settings = Settings(str(folder), port=0, dtype="float32", threads=1, max_running_requests=SLOTS)
    with serving.running(settings) as (url, server):
        yield Client(url, server)


def _calls() -> list[dict[str, Any]]:
    draw = random.Random(7)
    return [
        {
            "input_ids": [draw.randrange(20, 1000) for _ in range(draw.randrange(1, 120))],
            "return_logprob": True,
            "sampling_params": {"temperature": 0, "max_new_tokens": draw.randrange(5, 40), "ignore_eos": True},
        }
        for _ in range(60)
    ]


def _answers(client: Client, calls: Sequence[dict[str, Any]], order: Sequence[int]) -> dict[int, Any]:
    """Ids and log-probabilities by call, asked for all at once in this order."""
    with ThreadPoolExecutor(len(order)) as pool:
        replies = dict(zip(order, pool.map(lambda index: client.generate(calls[index]), order), strict=True))
    return {
        index: (reply["output_ids"], reply["meta_info"]["output_token_logprobs"]) for index, reply in replies.items()
    }


def test_alone_together_and_in_another_order(wide: Client) -> None:
    calls = _calls()
    together = _answers(wide, calls, range(len(calls)))
    assert _answers(wide, calls, random.Random(1).sample(range(len(calls)), len(calls))) == together
    for index in range(0, len(calls), 6):
        assert _answers(wide, calls, [index])[index] == together[index]
    for index in range(1, len(calls), 12):
        last = stream(wide, calls[index])[-1]
        assert (last["output_ids"], last["meta_info"]["output_token_logprobs"]) == together[index]
    assert len({tuple(ids) for ids, _ in together.values()}) > 50


def test_beside_rows_that_are_much_longer(wide: Client) -> None:
    """Sums over many values are cut in pieces; where must not depend on how long a neighbour is."""
    draw = random.Random(2)
    sampling = {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}
    calls = [
        {
            "input_ids": [draw.randrange(20, 1000) for _ in range(length)],
            "return_logprob": True,
            "sampling_params": sampling,
        }
        for length in (150, 300, 420, 600, 900)
    ]
    alone = {index: _answers(wide, calls, [index])[index] for index in range(len(calls))}
    long = {"input_ids": [21] * 1500, "sampling_params": {**sampling, "max_new_tokens": 400}}
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(wide.generate, long)
        deadline = time.monotonic() + 30
        while wide.server.engine.load()["tokens"] < 1500:
            assert time.monotonic() < deadline, "the long one never ran"
            time.sleep(0.01)
        assert _answers(wide, calls, range(len(calls))) == alone
        assert not beside.done()
        assert len(beside.result(60)["output_ids"]) == 400


def test_equal_to_transformers(wide: Client) -> None:
    from transformers import AutoModelForCausalLM

    own: Any = AutoModelForCausalLM.from_pretrained(wide.server.settings.model_path, attn_implementation="eager")
    for call in _calls()[:4]:
        ids = torch.tensor([call["input_ids"]])
        new = call["sampling_params"]["max_new_tokens"]
        made = own.generate(ids, max_new_tokens=new, min_new_tokens=new, do_sample=False, eos_token_id=None)
        assert wide.generate(call)["output_ids"] == made[0, ids.shape[1] :].tolist()


def test_tied_weights_and_stretched_positions(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    stretched = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0}
    stretched |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 16}
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        initializer_range=0.3,
        rope_parameters=stretched,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        own: Any = LlamaForCausalLM(config).eval()
    own.save_pretrained(tmp_path)
    ours = SlotModel(tmp_path, dtype="float32", max_rows=3)
    ids = torch.arange(30)
    with torch.inference_mode():
        wanted = own(input_ids=ids[None]).logits[0]
    first = ours.prefill([ids[:29].tolist(), [7, 8]], [True, False], hidden=False)
    torch.testing.assert_close(first.logits[:29], wanted[:29], rtol=1e-4, atol=1e-4)
    step = ours.decode([29, 9], hidden=False)
    torch.testing.assert_close(step.logits[0], wanted[29], rtol=1e-4, atol=1e-4)
    assert ours.model.get_input_embeddings().weight.shape == (128, 48)


def test_small_models_are_deterministic_and_say_so(wide: Client, tmp_path: Path) -> None:
    assert wide.server.engine.model.deterministic
    from transformers import GPT2Config, GPT2LMHeadModel

    GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=16, n_layer=1, n_head=2, n_positions=64)).save_pretrained(tmp_path)
    assert not SlotModel(tmp_path, dtype="float32", max_rows=2).deterministic
    with pytest.raises(ConfigError, match="--enable-deterministic-inference"):
        SlotModel(tmp_path, dtype="float32", max_rows=2, deterministic=True)


def test_spans_stay_sorted_when_rows_end() -> None:
    """Rows of a span are about as long as each other, whichever end: a step looks at little more than it has to."""
    draw = random.Random(3)
    cache = SlotCache(1, max_rows=SLOTS, max_tokens=SLOTS * 512)
    rows = list(range(SLOTS))
    lengths = sorted((draw.randrange(20, 300) for _ in rows), reverse=True)
    cache.begin_prefill(lengths)
    states = torch.tensor([float(row) for row in rows])[:, None, None, None].expand(SLOTS, 1, max(lengths), 2)
    cache.update(states, states, 0)
    while len(rows) > SPAN_ROWS:
        row = draw.randrange(len(rows))
        moves = cache.remove(row)
        assert len(moves) <= -(-SLOTS // SPAN_ROWS)
        for source, target in moves:
            assert source > target
            rows[target] = rows[source]
        rows.pop()
        assert cache.lengths == [lengths[name] for name in rows]
        longest = [max(cache.lengths[start:stop]) for start, stop, _ in cache.spans()]
        assert longest == sorted(longest, reverse=True)
    one = torch.full((len(rows), 1, 1, 2), -1.0)
    cache.begin_decode()
    keys, _ = cache.update(one, one, 0)
    for place, name in enumerate(rows):
        assert (keys[place, :, : lengths[name]] == name).all()
        assert (keys[place, :, lengths[name]] == -1).all()
