"""The two ways in which a request of /generate is not answered: an error reply, and the end of the server."""

from __future__ import annotations

import json
from typing import Any


class Refusal(Exception):
    """A request that is answered with an error status and this JSON body."""

    def __init__(self, status: int, body: dict[str, Any]) -> None:
        super().__init__(json.dumps(body))
        self.status, self.body = status, body


class Deadly(Exception):
    """A request on which the real server dies: ids outside the vocabulary, or nothing but empty prompts."""


def refusal(message: str, status: int = 400) -> Refusal:
    """The ordinary error shape of /generate."""
    return Refusal(status, {"error": {"message": message}})


def validation_refusal(details: str) -> Refusal:
    """The shape for a body that is not JSON or not of the right types."""
    message = f"1 validation error:\n  {details}\n\n  POST /generate [{details}]"
    body = {"object": "error", "message": message, "type": "Bad Request", "param": None, "code": 400}
    return Refusal(400, body)
