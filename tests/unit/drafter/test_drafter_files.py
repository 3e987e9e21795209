"""The trainer's folder and the server's folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from drafter_cases import Case, make_case, make_shape
from safetensors.torch import load_file, save_file
from torch import Tensor

from ray_jobs.core.errors import StageError
from ray_jobs.drafter.loss import unroll
from ray_jobs.drafter.serving import serve_command, verify_export, write_export
from ray_jobs.drafter.weights import load_weights, save_weights

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


@pytest.fixture
def case() -> Case:
    return make_case(1, (14,), torch.float32, make_shape(rope=YARN))


def rewrite(path: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def test_saved_weights_come_back_equal_and_work(case: Case, tmp_path: Path):
    save_weights(tmp_path / "a", case.model, case.shape, case.vocab)
    saved = load_weights(tmp_path / "a")
    assert saved.shape == case.shape
    assert torch.equal(saved.vocab.t2d, case.vocab.t2d)
    assert saved.vocab.coverage == case.vocab.coverage
    model = saved.build(case.model.embedding)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in case.model.state_dict().items())
    same = [unroll(m, case.teacher, case.batch, 2).ce_sum for m in (case.model, model)]
    assert torch.equal(*same)


def test_a_folder_is_replaced_whole_and_nothing_else_is_left(case: Case, tmp_path: Path):
    for _ in range(2):
        save_weights(tmp_path / "a", case.model, case.shape, case.vocab)
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_failed_write_leaves_the_old_folder(case: Case, tmp_path: Path):
    write_export(tmp_path / "e", case.model, case.shape, case.vocab)
    before = (tmp_path / "e" / "model.safetensors").read_bytes()
    state = {name: tensor * float("nan") for name, tensor in case.model.state_dict().items()}
    with pytest.raises(StageError, match="not finite"):
        write_export(tmp_path / "e", state, case.shape, case.vocab)
    assert (tmp_path / "e" / "model.safetensors").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["e"]


def test_weights_of_another_shape_are_refused(case: Case, tmp_path: Path):
    save_weights(tmp_path / "a", case.model, case.shape, case.vocab)
    rewrite(tmp_path / "a" / "weights.safetensors", lambda t: t.update(extra=t.pop("fc.weight")))
    with pytest.raises(StageError, match=r"fc\.weight is missing; extra is not expected"):
        load_weights(tmp_path / "a")
    with pytest.raises(StageError, match=r"lm_head\.weight has shape \[11, 12\], expected \[12, 12\]"):
        save_weights(tmp_path / "b", case.model, make_shape(draft_vocab=12), case.vocab)
    assert not (tmp_path / "b").exists()
    with pytest.raises(StageError, match="not a saved drafter"):
        load_weights(tmp_path)


def test_export_holds_what_servers_read(case: Case, tmp_path: Path):
    write_export(tmp_path, case.model, case.shape, case.vocab)
    tensors = load_file(tmp_path / "model.safetensors")
    assert {name for name in tensors if name not in case.shape.parameter_shapes()} == {"d2t", "t2d"}
    assert tensors["d2t"].dtype == torch.int64
    assert torch.equal(tensors["d2t"] + torch.arange(11), case.vocab.ids)
    assert tensors["t2d"].dtype == torch.bool
    assert tensors["lm_head.weight"].dtype == torch.bfloat16
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 4, 7]
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 5, 8]
    assert config["rope_parameters"] == {**YARN, "rope_theta": 500.0}
    assert (config["rope_theta"], config["rope_scaling"]) == (500.0, YARN)
    assert case.shape.n_parameters == sum(p.numel() for p in case.model.parameters())


def test_transformers_reads_the_same_positions(case: Case, tmp_path: Path):
    from transformers import LlamaConfig

    write_export(tmp_path, case.model, case.shape, case.vocab)
    read = LlamaConfig.from_pretrained(tmp_path)
    assert read.rope_parameters == {**YARN, "rope_theta": 500.0}
    assert (read.head_dim, read.num_key_value_heads, read.draft_vocab_size) == (6, 2, 11)  # type: ignore[attr-defined]


def test_a_full_vocabulary_has_no_map(tmp_path: Path):
    case = make_case(1, (6,), torch.float32, make_shape(vocab=7, draft_vocab=7))
    write_export(tmp_path, case.model, case.shape, case.vocab, torch.float32)
    assert set(load_file(tmp_path / "model.safetensors")) == set(case.shape.parameter_shapes())
    assert json.loads((tmp_path / "config.json").read_text())["draft_vocab_size"] == 7


TAMPERING: dict[str, tuple[Callable[[dict[str, Tensor]], object], str]] = {
    "renamed": (
        lambda t: t.update({"midlayer.hidden_norm": t.pop("midlayer.hidden_norm.weight")}),
        r"midlayer\.hidden_norm\.weight is missing; midlayer\.hidden_norm is not expected",
    ),
    "no head": (lambda t: t.pop("lm_head.weight"), r"lm_head\.weight is missing"),
    "no map": (lambda t: t.pop("d2t"), r"d2t is missing"),
    "extra": (lambda t: t.update({"embed_tokens.weight": torch.ones(2)}), r"embed_tokens\.weight is not expected"),
    "shape": (
        lambda t: t.update({"fc.weight": t["fc.weight"].t().contiguous()}),
        r"fc\.weight has shape \[36, 12\], expected \[12, 36\]",
    ),
    "dtype": (lambda t: t.update({"norm.weight": t["norm.weight"].float()}), r"norm\.weight is torch\.float32"),
    "nan": (lambda t: t["norm.weight"].fill_(float("nan")), r"norm\.weight has values that are not finite"),
    "absolute map": (lambda t: t["d2t"].add_(torch.arange(11)), r"d2t does not map to rising target ids"),
    "other members": (lambda t: t["t2d"].logical_not_(), r"t2d does not mark the ids of d2t"),
}


@pytest.mark.parametrize(("change", "line"), TAMPERING.values(), ids=TAMPERING)
def test_a_changed_export_is_refused_by_name(case: Case, tmp_path: Path, change: Callable, line: str):
    write_export(tmp_path, case.model, case.shape, case.vocab)
    verify_export(tmp_path)
    rewrite(tmp_path / "model.safetensors", change)
    with pytest.raises(StageError, match=line) as refused:
        verify_export(tmp_path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [("draft_vocab_size", None), ("architectures", ["LlamaForCausalLM"]), ("rope_parameters", {}), ("norm_output", 1)],
)
def test_a_changed_config_is_refused_by_name(case: Case, tmp_path: Path, key: str, value: object):
    write_export(tmp_path, case.model, case.shape, case.vocab)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(StageError, match=key):
        verify_export(tmp_path)


def test_a_folder_that_is_no_export_is_refused(tmp_path: Path):
    with pytest.raises(StageError, match="cannot be read"):
        verify_export(tmp_path)


def test_serve_command_counts_the_target_token_too():
    assert serve_command("org/model", "/runs/a b/export", 5) == (
        "python -m sglang.launch_server --model-path org/model --speculative-algorithm EAGLE3 "
        "--speculative-draft-model-path '/runs/a b/export' --speculative-num-steps 5 --speculative-eagle-topk 1 "
        "--speculative-num-draft-tokens 6"
    )
