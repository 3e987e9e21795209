"""Each fault on order, seen from a client."""

from __future__ import annotations

import time
from typing import Any

import pytest
import requests
from embedded_cases import PROMPT, Client

from ray_jobs.core.errors import ConfigError
from ray_jobs.target.embedded import serving
from ray_jobs.target.embedded.faults import Faults
from ray_jobs.target.embedded.server import Server

BODY = {"input_ids": PROMPT, "sampling_params": {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True}}


def _ask(client: Client, faults: Faults, timeout_s: float = 30, **extra: Any) -> requests.Response:
    with serving.listening(Server(client.server.settings, client.server.engine, faults, **extra)) as url:
        return requests.post(url + "/generate", json=BODY, timeout=timeout_s)


def test_reset(client: Client) -> None:
    with pytest.raises(requests.ConnectionError):
        _ask(client, Faults(reset_share=1))


def test_stall(client: Client) -> None:
    with pytest.raises(requests.Timeout):
        _ask(client, Faults(stall_share=1), timeout_s=0.3)


@pytest.mark.parametrize("status", [500, 503, 429])
def test_error_status(client: Client, status: int) -> None:
    reply = _ask(client, Faults(**{f"error_{status}_share": 1}))  # type: ignore[arg-type]
    assert reply.status_code == status
    assert reply.text


def test_abort_gives_partial_ids(client: Client) -> None:
    whole = client.generate(BODY)["output_ids"]
    reply = _ask(client, Faults(abort_share=1)).json()
    assert reply["meta_info"]["finish_reason"]["type"] == "abort"
    assert reply["output_ids"] == whole[:3]
    assert reply["meta_info"]["completion_tokens"] == 3


def test_malformed(client: Client) -> None:
    reply = _ask(client, Faults(malformed_share=1))
    assert reply.status_code == 200
    with pytest.raises(ValueError, match=r".+"):
        reply.json()


def test_wrong_count(client: Client) -> None:
    reply = _ask(client, Faults(wrong_count_share=1)).json()
    assert reply["meta_info"]["completion_tokens"] == len(reply["output_ids"]) + 1


def test_latency(client: Client) -> None:
    started = time.monotonic()
    assert _ask(client, Faults(latency_s=0.3)).status_code == 200
    assert time.monotonic() - started >= 0.3


def test_die_after(client: Client) -> None:
    died: list[str] = []
    faults = Faults(die_after=3)
    with serving.listening(Server(client.server.settings, client.server.engine, faults, died.append)) as url:
        for _ in range(2):
            assert requests.post(url + "/generate", json=BODY, timeout=30).status_code == 200
        with pytest.raises(requests.ConnectionError):
            requests.post(url + "/generate", json=BODY, timeout=30)
    assert died == ["fault: call 3"]


@pytest.mark.parametrize(
    "body",
    [
        {"input_ids": [1, 512]},
        {"input_ids": [1, -5]},
        {"input_ids": [[4, 300], [1, 99999999]]},
        {"input_ids": [[]]},
        {"text": ""},
    ],
)
def test_what_kills_the_real_server_kills_this_one(client: Client, body: dict[str, Any]) -> None:
    died: list[str] = []
    mortal = Server(client.server.settings, client.server.engine, None, died.append)
    with serving.listening(mortal) as url, pytest.raises(requests.ConnectionError):
        requests.post(url + "/generate", json=body, timeout=30)
    assert len(died) == 1


def test_shares_are_met_and_repeat() -> None:
    faults = Faults(error_500_share=0.3, reset_share=0.1, seed=3)
    drawn = [faults.of_call(number) for number in range(1, 2001)]
    assert drawn == [faults.of_call(number) for number in range(1, 2001)]
    assert drawn.count("error_500") / 2000 == pytest.approx(0.3, abs=0.04)
    assert drawn.count("reset") / 2000 == pytest.approx(0.1, abs=0.03)
    assert drawn != [Faults(error_500_share=0.3, reset_share=0.1, seed=4).of_call(n) for n in range(1, 2001)]


@pytest.mark.parametrize(
    "text", ["nonsense", "[]", '{"unknown": 1}', '{"reset_share": "x"}', '{"reset_share": 0.7, "abort_share": 0.6}']
)
def test_wrong_faults_are_refused(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Faults.parse(text)
    assert str(refused.value).startswith("--faults")


def test_faults_from_json() -> None:
    assert Faults.parse('{"latency_s": 0.1, "die_after": 4, "seed": 2}') == Faults(latency_s=0.1, die_after=4, seed=2)
