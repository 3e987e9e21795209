"""What may be sent, and what counts as an answer. Reply shapes are those of SGLang 0.5.23."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from ray_jobs.core.errors import Rejected, Retryable
from ray_jobs.core.records import Drafts, Request
from ray_jobs.target import wire

LIMITS = wire.Limits(vocab_size=49152, context_length=8192)
REQUEST = Request("p-0-0", [504, 3575, 282], {"temperature": 0.0, "max_new_tokens": 32})
REPLY: dict[str, Any] = {
    "text": "The capital of France is Paris.",
    "output_ids": [504, 3575, 282, 4649, 314, 7042, 30, 2],
    "meta_info": {
        "id": "9ba5",
        "finish_reason": {"type": "stop", "matched": 2},
        "prompt_tokens": 3,
        "completion_tokens": 8,
        "cached_tokens": 0,
        "weight_version": "default",
    },
}


def changed(**meta: Any) -> dict[str, Any]:
    body = copy.deepcopy(REPLY)
    ids = meta.pop("output_ids", None)
    if ids is not None:
        body["output_ids"] = ids
    body["meta_info"].update(meta)
    return body


def test_a_good_reply_is_taken_as_it_is() -> None:
    reply = wire.to_reply(REPLY, REQUEST, LIMITS)
    assert reply.output_ids == REPLY["output_ids"]
    assert (reply.finish_reason, reply.matched_stop, reply.prompt_tokens) == ("stop", 2, 3)
    assert (reply.request_id, reply.weight_version) == ("9ba5", "default")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (changed(finish_reason={"type": "abort", "message": "Aborted"}), "abort"),
        (changed(finish_reason=None), "malformed"),
        (changed(completion_tokens=9), "8 output ids but completion_tokens=9"),
        (changed(output_ids=[], completion_tokens=0), "0 output ids"),
        (changed(prompt_tokens=4), "sent 3 prompt ids but prompt_tokens=4"),
        (changed(output_ids=[49152], completion_tokens=1), "outside the vocabulary"),
        (changed(output_ids=[-1], completion_tokens=1), "outside the vocabulary"),
        (changed(output_ids=["a"], completion_tokens=1), "not integers"),
        (changed(output_ids=[True], completion_tokens=1), "not integers"),
        (changed(output_ids=[1] * 33, completion_tokens=33), "33 output ids but max_new_tokens=32"),
        ({"text": "x"}, "malformed"),
        ([REPLY], "malformed"),
        ("nonsense", "malformed"),
        (None, "malformed"),
    ],
)
def test_what_is_no_answer_is_asked_again(body: Any, why: str) -> None:
    with pytest.raises(Retryable, match=why) as caught:
        wire.to_reply(body, REQUEST, LIMITS)
    assert caught.value.raw is not None


@pytest.mark.parametrize(
    ("ids", "why"),
    [
        ([], "no ids"),
        ([1, 49152], "49152 is outside the vocabulary of 49152"),
        ([-1], "-1 is outside"),
        ([1] * 8192, "leave no room"),
    ],
)
def test_prompts_that_kill_a_server_are_never_sent(ids: list[int], why: str) -> None:
    with pytest.raises(Rejected, match=why):
        wire.check_prompt(ids, LIMITS)


@pytest.mark.parametrize(("n_prompt", "expected"), [(10, 4096), (8000, 191), (8190, 1), (8191, 1)])
def test_the_answer_fits_the_context(n_prompt: int, expected: int) -> None:
    fitted = wire.fit_sampling({"max_new_tokens": 4096, "temperature": 1.0}, n_prompt, LIMITS)
    assert fitted == {"max_new_tokens": expected, "temperature": 1.0}


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ('{"error":{"message":"input_ids cannot be empty."}}', "HTTP 400: input_ids cannot be empty."),
        ('{"error":"unknown field `foo`"}', "HTTP 400: unknown field `foo`"),
        ('{"object":"error","message":"1 validation\\n error","code":400}', "HTTP 400: 1 validation error"),
        ("<html>bad gateway</html>", "HTTP 400: <html>bad gateway</html>"),
    ],
)
def test_error_bodies_of_all_shapes_become_one_line(body: str, line: str) -> None:
    assert wire.error_text(400, body) == line


def test_the_request_hash_depends_on_what_is_asked_and_on_nothing_else() -> None:
    same = Request("p-0-0", [504, 3575, 282], {"max_new_tokens": 32, "temperature": 0.0})
    assert wire.request_hash(same) == wire.request_hash(REQUEST)
    others = [
        Request("p-0-1", REQUEST.input_ids, REQUEST.sampling),
        Request("p-0-0", [504], REQUEST.sampling),
        Request("p-0-0", REQUEST.input_ids, {**REQUEST.sampling, "temperature": 0.1}),
    ]
    assert len({wire.request_hash(r) for r in [REQUEST, *others]}) == 4


def test_the_counts_of_a_server_with_a_drafter_are_kept() -> None:
    assert wire.to_reply(REPLY, REQUEST, LIMITS).drafts is None
    body = changed(spec_verify_ct=3, spec_num_proposed_drafts=9, spec_num_correct_drafts=4)
    assert wire.to_reply(body, REQUEST, LIMITS).drafts == Drafts(verify_steps=3, proposed=9, accepted=4)


def test_the_two_likeliest_ids_are_read() -> None:
    body = changed(output_top_logprobs=[[[-0.1, 504, None], [-2.5, 7, None]]])
    assert wire.to_top_two(body) == (-0.1, -2.5)
    with pytest.raises(Retryable, match="no output_top_logprobs"):
        wire.to_top_two(REPLY)
