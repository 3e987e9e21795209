"""What each way to fail means, against a real socket."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from ray_jobs.core.errors import EagleRayError, Fatal, LocalFault, Rejected, ReplicaDown, Retryable
from ray_jobs.core.records import Request
from ray_jobs.target.client import Client
from ray_jobs.target.process import free_port
from ray_jobs.target.wire import Limits

REQUEST = Request("p-0-0", [1, 2, 3], {"max_new_tokens": 4})
GOOD = {
    "output_ids": [5],
    "meta_info": {
        "id": "x",
        "finish_reason": {"type": "length", "length": 1},
        "prompt_tokens": 3,
        "completion_tokens": 1,
    },
}


class Server:
    """Answers with whatever `respond(handler, body)` does; keeps what it was asked."""

    def __init__(self, respond: Callable[[BaseHTTPRequestHandler, Any], None]) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.asked.append((self.path, body))
                outer.headers.append(dict(self.headers))
                if self.path == "/abort_request":
                    send(self, 200, b"")
                else:
                    respond(self, body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def send(handler: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[BaseHTTPRequestHandler, Any], None]], Server]]:
    servers: list[Server] = []

    def start(respond: Callable[[BaseHTTPRequestHandler, Any], None]) -> Server:
        servers.append(Server(respond))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def ask(address: str, deadline_s: float = 5.0) -> Any:
    return Client(Limits(vocab_size=100, context_length=64)).generate(address, REQUEST, deadline_s=deadline_s)


@pytest.mark.parametrize(
    ("status", "kind", "wait"),
    [
        (400, Rejected, None),
        (413, Rejected, None),
        (422, Rejected, None),
        (401, Fatal, None),
        (403, Fatal, None),
        (404, Fatal, None),
        (405, Fatal, None),
        (408, Retryable, False),
        (429, Retryable, True),
        (500, Retryable, False),
        (502, Retryable, False),
        (503, Retryable, True),
        (504, Retryable, False),
    ],
)
def test_statuses(serve: Any, status: int, kind: type[EagleRayError], wait: bool | None) -> None:
    server = serve(lambda handler, _: send(handler, status, b'{"error":{"message":"no"}}'))
    with pytest.raises(kind, match=f"HTTP {status}: no") as caught:
        ask(server.address)
    assert type(caught.value) is kind
    assert getattr(caught.value, "wait", None) is wait


def test_ids_go_out_and_come_back_unchanged(serve: Any) -> None:
    server = serve(lambda handler, _: send(handler, 200, json.dumps(GOOD).encode()))
    assert ask(server.address).output_ids == [5]
    path, body = server.asked[0]
    assert path == "/generate"
    assert body["input_ids"] == [1, 2, 3]
    assert body["sampling_params"] == {"max_new_tokens": 4}
    assert body["rid"].startswith("p-0-0-")
    assert set(body) == {"input_ids", "sampling_params", "rid"}


def test_broken_json_is_asked_again(serve: Any) -> None:
    server = serve(lambda handler, _: send(handler, 200, b'{"output_ids": [5'))
    with pytest.raises(Retryable, match="not JSON"):
        ask(server.address)


def test_the_deadline_aborts_the_generation_by_its_rid(serve: Any) -> None:
    server = serve(lambda handler, _: time.sleep(3))
    started = time.monotonic()
    with pytest.raises(Retryable, match="deadline of 1 s"):
        ask(server.address, deadline_s=1.0)
    assert time.monotonic() - started < 2.5
    assert [path for path, _ in server.asked] == ["/generate", "/abort_request"]
    assert server.asked[1][1] == {"rid": server.asked[0][1]["rid"]}


def test_nobody_listens() -> None:
    with pytest.raises(ReplicaDown, match="no connection"):
        ask(f"http://127.0.0.1:{free_port()}")


def test_a_reset_before_the_first_byte_is_asked_again() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def reset() -> None:
        connection, _ = listener.accept()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        connection.close()

    thread = threading.Thread(target=reset)
    thread.start()
    with pytest.raises(Retryable, match="connection broke"):
        ask(f"http://127.0.0.1:{listener.getsockname()[1]}")
    thread.join()
    listener.close()


def test_running_out_of_file_handles_is_not_the_rows_fault(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve(lambda handler, _: send(handler, 200, json.dumps(GOOD).encode()))

    def no_more(*_: Any, **__: Any) -> Any:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("urllib3.util.connection.create_connection", no_more)
    with pytest.raises(LocalFault, match="file handles"):
        ask(server.address)
    assert server.asked == []


def test_credentials_come_from_the_environment_alone(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve(lambda handler, _: send(handler, 200, json.dumps(GOOD).encode()))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    ask(server.address)
    assert "Authorization" not in server.headers[0]
    monkeypatch.setenv("EAGLE_RAY_API_KEY", "k")
    ask(server.address)
    assert server.headers[1]["Authorization"] == "Bearer k"
