"""What the tests of the embedded server share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import requests

from ray_jobs.target.embedded.server import Server

PROMPT = [4, 300, 301, 350, 7, 5, 6, 8]


@dataclass
class Client:
    """A server under test."""

    url: str
    server: Server

    def post(self, path: str, body: Any, **arguments: Any) -> requests.Response:
        return requests.post(self.url + path, json=body, timeout=60, **arguments)

    def generate(self, body: dict[str, Any]) -> Any:
        """The JSON of a call that must succeed."""
        reply = self.post("/generate", body)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def greedy(self, ids: list[int], new: int, **extra: Any) -> Any:
        """A greedy call that must succeed."""
        return self.generate({"input_ids": ids, "sampling_params": {"temperature": 0, "max_new_tokens": new, **extra}})
