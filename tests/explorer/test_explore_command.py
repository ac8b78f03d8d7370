"""`nearsight explore` as a person calls it: mistakes are sentences, and Ctrl+C ends it quietly."""

import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from nearsight.cli.explore import explore


def test_mistakes():
    with pytest.raises(ValueError, match="from 0 to 65535, not 70000"):
        explore("deit_nano_32", port=70_000)
    with pytest.raises(ValueError, match="did you mean"):
        explore("deit_nanno_32")
    with pytest.raises(ValueError, match="give one source"):
        explore("deit_nano_32", "convit_nano_32", weights="w.safetensors")
    for source, message in (("timm:nosuch", "timm cannot build"), ("resnet26", "no attention layers")):
        with pytest.raises(ValueError, match=message):
            explore(source, port=0, open_browser=False)
    with pytest.raises(ValueError, match="no weights at"):
        explore("deit_nano_32", weights=Path("nosuch.pth"), port=0, open_browser=False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ValueError, match="choose another --port"):
            explore("deit_nano_32", port=taken.getsockname()[1], open_browser=False)


def test_it_serves_with_a_token_and_ends_quietly():
    start = (
        "from nearsight.cli.explore import explore; explore('deit_nano_32', host='0.0.0.0', port=0, open_browser=False)"
    )
    process = subprocess.Popen([sys.executable, "-c", start], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        address = next(word for word in process.stdout.readline().split() if word.startswith("http://"))
        assert "?token=" in address
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        port_and_token = address.rpartition(":")[2]
        with opener.open(f"http://127.0.0.1:{port_and_token}", timeout=30) as answer:
            assert b"nearsight explorer" in answer.read()
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert errors == ""
