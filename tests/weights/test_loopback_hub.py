"""Published weights through a hub on this machine: asked for by name, fetched once and only where it is allowed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import timm
import torch
from safetensors.torch import save

REPOSITORY = "/timm/resnet18.a1_in1k/resolve/main/model.safetensors"
SCRIPT = """
import sys, torch, nearsight
from nearsight.weights import find_weights
tensors = find_weights("timm:resnet18", download=sys.argv[1] == "yes").read()
print(len(tensors), float(tensors["fc.bias"].sum()))
"""


@pytest.fixture
def hub():
    """A server with one file, and the requests that it was sent for it."""
    torch.manual_seed(0)
    content = save(timm.create_model("resnet18", num_classes=3).state_dict())
    asked: list[str] = []

    class Hub(BaseHTTPRequestHandler):
        def do_HEAD(self):
            asked.append(f"{self.command} {self.path}")
            found = self.path == REPOSITORY
            self.send_response(200 if found else 404)
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("X-Repo-Commit", "1" * 40)
            self.send_header("Content-Length", str(len(content) if found else 0))
            self.end_headers()
            return found

        def do_GET(self):
            if self.do_HEAD():
                self.wfile.write(content)

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()


def asked_for(address, home, allowed):
    environment = {**os.environ, "HF_ENDPOINT": address, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
    words = [sys.executable, "-c", SCRIPT, "yes" if allowed else "no"]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_weights_are_fetched_once_and_only_where_it_is_allowed(hub, tmp_path):
    address, asked = hub
    refused = asked_for(address, tmp_path, False)
    assert "timm:resnet18 are not on this machine; --download" in refused.stderr
    assert asked == []
    fetched = asked_for(address, tmp_path, True)
    assert fetched.returncode == 0, fetched.stderr[-2000:]
    assert fetched.stdout.startswith("122 ")
    assert f"GET {REPOSITORY}" in asked
    before = list(asked)
    again = asked_for(address, tmp_path, False)  # from here on they are on this machine
    assert again.stdout == fetched.stdout
    assert asked == before
