"""From the word a user gives to a folder, end to end: the real library against a hub on this host, in processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.models.test_hub import COMMIT, CONFIG

SERVED = {"config.json": json.dumps(CONFIG).encode(), "model.safetensors": b"0123456789" * 99, "big.bin": b"x"}


class HubHandler(BaseHTTPRequestHandler):
    """As much of the hub's protocol as the library asks for."""

    def do_GET(self) -> None:
        path, _, _ = self.path.partition("?")
        if "/gated/" in path and "/resolve/" in path:
            return self._answer(403, b"", {"X-Error-Code": "GatedRepo"})
        if "/down/" in path:
            return self._answer(500, b"")
        if "/lost/" in path:
            return self._answer(404, b"", {"X-Error-Code": "RepoNotFound"})
        if path.endswith("/revision/v9"):
            return self._answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
        if "/revision/" in path or path.endswith("/api/models/good/model"):
            return self._json({"id": "good/model", "sha": COMMIT, "siblings": [{"rfilename": n} for n in SERVED]})
        if "/tree/" in path:
            sizes = {name: len(data) for name, data in SERVED.items()}
            return self._json([{"type": "file", "path": n, "size": s, "oid": f"oid-{n}"} for n, s in sizes.items()])
        data = SERVED.get(path.rpartition("/")[2])
        if "/resolve/" not in path or data is None:
            return self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        return self._answer(200, data, {"ETag": f'"{path.rpartition("/")[2]}"', "X-Repo-Commit": COMMIT})

    do_HEAD = do_GET

    def _json(self, value: object) -> None:
        self._answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


CLIENT = """
import json, sys
from mini_infer.errors import UserError
from mini_infer.models.hub import resolve
out = []
for source, revision in json.loads(sys.argv[1]):
    try:
        out.append(sorted(path.name for path in resolve(source, revision).iterdir()))
    except UserError as error:
        out.append(str(error))
print(json.dumps(out))
"""


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), HubHandler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def ask(cache: Path, endpoint: str, *questions: tuple[str, str | None], **environment: str) -> list[Any]:
    """What `resolve` answers to each question in a fresh process: file names, or the error's line."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"), "")
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, json.dumps(questions)],
        env={
            **kept,
            **proxies,
            "HF_HOME": str(cache),
            "HF_ENDPOINT": endpoint,
            "HF_HUB_DISABLE_XET": "1",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_fetch_then_work_offline_from_the_cache(tmp_path: Path, endpoint: str) -> None:
    lost = ("lost/model", None)
    good, bad_revision, gated, lost_line, down = ask(
        tmp_path,
        endpoint,
        ("good/model", None),
        ("good/model", "v9"),
        ("gated/model", None),
        lost,
        ("down/model", None),
    )
    assert good == ["config.json", "model.safetensors"]
    assert "no revision 'v9'" in bad_revision
    assert "gated/model is gated" in gated
    assert "no repository lost/model" in lost_line
    assert "down/model: the hub answered 500" in down

    nobody = "http://127.0.0.1:9"  # the discard port: nothing listens
    questions = ("good/model", None), ("new/model", None), ("good/model", "v8")
    cached, absent, other_revision = ask(tmp_path, nobody, *questions)
    assert cached == good
    assert "new/model" in absent and "cannot be reached" in absent and "connect once" in absent
    assert "connect once" in other_revision

    cached, absent, _ = ask(tmp_path, nobody, *questions, HF_HUB_OFFLINE="1")
    assert cached == good
    assert "HF_HUB_OFFLINE" in absent and "give a folder" in absent
