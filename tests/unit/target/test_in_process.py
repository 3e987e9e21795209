"""Features in this process against transformers' own hidden states and logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ray_jobs.core.errors import ConfigError, GuardError
from ray_jobs.target.in_process import InProcessTarget, decoder_layers, default_aux_layers
from tests.models import EOS_IDS, tiny_model

ROWS = [[4, 300, 301, 7], [5], [6, 21, 22, 23, 24, 25, 26, 27, 28]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("models") / "tiny", layers=8, seed=1)


@pytest.fixture(scope="module")
def target(folder: Path) -> InProcessTarget:
    # one thread: tiny products only wait for each other's threads on a busy machine
    return InProcessTarget.load(folder, dtype="float32", threads=1)


@pytest.fixture(scope="module")
def own(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32, attn_implementation="eager")


def test_features_equal_hidden_states_of_each_row_alone(target: InProcessTarget, own: Any) -> None:
    got = target.features(ROWS)
    assert target.aux_layers == (1, 3, 4)
    for ids, features in zip(ROWS, got, strict=True):
        with torch.inference_mode():
            states = own(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states
        # entry k + 1 is the output of layer k; the last entry has the final norm applied
        wanted = torch.cat([states[layer + 1][0] for layer in target.aux_layers], dim=-1)
        assert features.aux.shape == (len(ids), 3 * 64)
        torch.testing.assert_close(features.aux, wanted, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(features.last, states[-1][0], rtol=1e-4, atol=1e-5)


def test_last_layer_is_captured_without_the_norm(folder: Path, own: Any) -> None:
    target = InProcessTarget.load(folder, dtype="float32", aux_layers=(0, 3, 7))
    seen: list[torch.Tensor] = []
    handle = decoder_layers(own)[7].register_forward_hook(lambda _m, _a, out: seen.append(out))  # type: ignore[reportArgumentType]
    with torch.inference_mode():
        own(input_ids=torch.tensor([ROWS[2]]))
    handle.remove()
    aux = target.features([ROWS[2]])[0].aux
    torch.testing.assert_close(aux[:, 2 * 64 :], seen[0][0], rtol=1e-4, atol=1e-5)


def test_features_own_their_memory(target: InProcessTarget) -> None:
    short = target.features(ROWS)[1]
    assert short.aux.untyped_storage().nbytes() == short.aux.nbytes


def test_check_agrees_with_the_model(target: InProcessTarget) -> None:
    assert target.check(ROWS[2]) < 1e-4
    assert target.check([5]) == 0.0
    with pytest.raises(GuardError):
        target.check(ROWS[2], tolerance=-1.0)


def test_weights_and_facts(target: InProcessTarget, own: Any) -> None:
    assert torch.equal(target.lm_head, own.lm_head.weight)
    assert torch.equal(target.embedding, own.model.embed_tokens.weight)
    assert torch.equal(target.final_norm, own.model.norm.weight)
    facts = target.config
    assert (facts.hidden_size, facts.n_layers, facts.vocab_size) == (64, 8, 512)
    assert (facts.n_heads, facts.n_kv_heads, facts.head_dim) == (4, 2, 16)
    assert (facts.context_length, facts.rms_norm_eps, facts.eos_token_ids) == (2048, 1e-6, EOS_IDS)
    assert facts.rope_parameters["rope_theta"] == 10000.0


def test_bfloat16_features_are_bfloat16(folder: Path) -> None:
    target = InProcessTarget.load(folder, dtype="bfloat16")
    features = target.features(ROWS)[0]
    assert (features.aux.dtype, features.last.dtype) == (torch.bfloat16, torch.bfloat16)
    assert target.check(ROWS[2]) < 0.1


def test_empty_rows_are_refused(target: InProcessTarget) -> None:
    for batch in ([], [[1], []]):
        with pytest.raises(ValueError, match="at least one id"):
            target.features(batch)


@pytest.mark.parametrize(
    ("n_layers", "layers"), [(30, (1, 14, 26)), (36, (1, 17, 32)), (7, (1, 2, 3)), (6, (0, 2, 5)), (3, (0, 1, 2))]
)
def test_default_layers(n_layers: int, layers: tuple[int, int, int]) -> None:
    assert default_aux_layers(n_layers) == layers


def test_wrong_layers_dtype_and_folder_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        default_aux_layers(2)
    for layers in ((0, 1, 8), (1, 1, 2)):
        with pytest.raises(ConfigError, match="aux_layers"):
            InProcessTarget.load(folder, dtype="float32", aux_layers=layers)
    with pytest.raises(ConfigError, match="dtype"):
        InProcessTarget.load(folder, dtype="int3")
    with pytest.raises(ConfigError, match=r"config\.json"):
        InProcessTarget.load(tmp_path, dtype="float32")
