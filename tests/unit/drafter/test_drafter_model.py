from __future__ import annotations

import json

import pytest
import torch
from drafter_cases import make_case, make_shape

from ray_jobs.core.errors import ConfigError
from ray_jobs.drafter.model import DrafterShape, Eagle3Drafter, initialise
from ray_jobs.drafter.rope import RotaryTable, rope_frequencies

SCALINGS = [
    {"rope_type": "linear", "factor": 4.0},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 64},
    {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 16.0, "beta_slow": 2.0},
]


@pytest.mark.parametrize("scaling", [None, *SCALINGS])
def test_positions_are_those_of_transformers(scaling: dict | None):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    parameters = {"rope_theta": 5000.0, "rope_type": "default", **(scaling or {})}
    parameters["rope_type"] = parameters.pop("type", parameters["rope_type"])
    config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=2,
        num_hidden_layers=1,
        vocab_size=8,
        head_dim=32,
        max_position_embeddings=1024,
        rope_parameters=parameters,
    )
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1, 1, 64), torch.arange(300)[None])
    table = RotaryTable(rope_frequencies(32, 5000.0, scaling), 300, torch.zeros(1))
    torch.testing.assert_close(table.cos[:, 0], cos[0, :, :16], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(table.sin[:, 0], sin[0, :, :16], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "longrope", "factor": 2.0},
        {"rope_type": "linear"},
        {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64, "mscale_all_dim": 1.0},
    ],
)
def test_scaling_that_a_server_would_read_otherwise_is_refused(scaling: dict):
    with pytest.raises(ConfigError, match=r"^drafter\.rope_scaling"):
        make_shape(rope=scaling)


def test_only_the_exported_names_are_in_the_state_and_they_have_the_stated_shapes():
    case = make_case(0)
    expected = case.shape.parameter_shapes()
    assert {k: tuple(v.shape) for k, v in case.model.state_dict().items()} == expected
    assert {k for k, _ in case.model.named_parameters()} == set(expected)
    assert not list(case.model.buffers())


def test_shape_survives_json():
    shape = make_shape(rope=SCALINGS[1])
    assert DrafterShape.from_dict(json.loads(json.dumps(shape.to_dict()))) == shape


@pytest.mark.parametrize(
    ("key", "value"), [("hidden_size", 16), ("n_kv_heads", 3), ("draft_vocab_size", 20), ("aux_layers", (4, 1))]
)
def test_impossible_shapes_are_refused(key: str, value: object):
    with pytest.raises(ConfigError, match=r"^drafter\.\w+="):
        DrafterShape.from_dict({**make_shape().to_dict(), key: value})


def test_initial_weights_depend_on_the_seed_alone():
    shape = make_shape()
    head, norm = torch.randn(shape.draft_vocab_size, 12), torch.rand(12)
    states = []
    for seed in (1, 1, 2):
        model = Eagle3Drafter(shape, torch.randn(19, 12))
        initialise(model, head, norm, seed)
        states.append(model.state_dict())
    assert all(torch.equal(states[0][k], states[1][k]) for k in states[0])
    up = "midlayer.mlp.up_proj.weight"
    assert not torch.equal(states[0][up], states[2][up])
    # the carried hidden state starts as the output of the latest captured layer
    width = shape.target_hidden_size
    assert torch.equal(states[0]["fc.weight"][:, -width:], torch.eye(width))
    assert bool((states[0]["fc.weight"][:, :-width] == 0).all())
    assert torch.equal(states[0]["lm_head.weight"], head)
    assert torch.equal(states[0]["norm.weight"], norm)
    assert abs(float(states[0]["midlayer.mlp.up_proj.weight"].std()) - 0.02) < 0.004
    assert bool((states[0]["midlayer.hidden_norm.weight"] == 1).all())


def test_the_embedding_is_shared_and_keeps_its_dtype():
    embedding = torch.randn(19, 12)
    model = Eagle3Drafter(make_shape(), embedding)
    assert model.double().embedding.data_ptr() == embedding.data_ptr()
    assert model.to("meta").embedding.device.type == "meta"


def test_scaled_positions_reach_the_drafter():
    case = make_case(3, (30,))
    other = Eagle3Drafter(make_shape(rope=SCALINGS[0]), case.model.embedding).double()
    other.load_state_dict(case.model.state_dict())
    arguments = (case.batch.input_ids, case.batch.aux, [0, 30], torch.ones(30, dtype=torch.bool), 2)
    assert not torch.allclose(case.model(*arguments)[1], other(*arguments)[1])
