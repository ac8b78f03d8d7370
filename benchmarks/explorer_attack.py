"""500 hostile connections and 300 uploads at an explorer: how long a click takes meanwhile, and its memory.

    python benchmarks/explorer_attack.py --out results/explorer_attack.json

Starts `nearsight explore` on a free port of this machine, holds 500 connections open (silent ones, halves of headers,
headers that drip, bodies that stall, readers that do not read), keeps opening them, and uploads 300 pictures, 100 at a
time, each of up to 24 million pixels. Every connection stays on this machine, and all end after some minutes. Prints
and writes the seconds of every click while that lasts, what the uploads were answered, and the largest memory of the
server and its decoding process together.
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import multiprocessing
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

CONNECTIONS, UPLOADS, AT_ONCE, LEAST_CLICKS = 500, 300, 100, 100
LONGEST = 300.0
"""Seconds after which everything ends, whatever has happened."""
OPENINGS = (
    b"",
    b"GET / HTTP/1.1\r\nHost: loc",
    b"POST /api/pictures HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10000000\r\n\r\nxx",
    b"POST /api/inspections HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10000\r\n\r\n{",
    b"GET /api/models HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200,
    b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 314572800\r\n\r\n" + b"x" * 4096,
)


def encoded(height: int, width: int) -> bytes:
    """A picture of many pixels in few bytes, each of another size."""
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((height, width, 4), np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def ask(port: int, method: str, path: str, body: bytes | None = None, seconds: float = 60.0) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def memory_of(pid: int) -> int:
    """Resident bytes of a process and its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    status = Path(f"/proc/{pid}/status").read_text()
    own = int(status.split("VmRSS:")[1].split()[0]) * 1024
    return own + sum(memory_of(int(child)) for child in children if Path(f"/proc/{child}/status").exists())


class Attack:
    """Everything that hostile clients do, in a process beside the one that clicks."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.over = threading.Event()
        self.opened = 0
        self.answers: Counter[str] = Counter()
        self.pictures = [encoded(3900 + number, 6000) for number in range(4)]

    def hold_connections(self) -> None:
        """500 at any time; one that the server closes is opened anew."""
        held: list[socket.socket] = []
        while not self.over.is_set():
            try:
                connection = socket.create_connection(("127.0.0.1", self.port), timeout=5)
                connection.setblocking(False)
                connection.send(OPENINGS[self.opened % len(OPENINGS)])
                held.append(connection)
                self.opened += 1
            except OSError:
                time.sleep(0.01)
            if len(held) >= CONNECTIONS:
                held.pop(0).close()
                time.sleep(0.02)
        for connection in held:
            connection.close()

    def upload(self, number: int) -> None:
        path = f"/api/pictures?name={number}"
        try:
            status, _ = ask(self.port, "POST", path, self.pictures[number % len(self.pictures)], seconds=LONGEST)
            self.answers[str(status)] += 1
        except (OSError, http.client.HTTPException) as error:
            self.answers[type(error).__name__] += 1

    def upload_all(self) -> None:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(self.upload, range(UPLOADS)))


def attack(port: int, told: Connection) -> None:
    """Hold the connections, then upload all; tells when it begins to upload, and in the end what happened."""
    made = Attack(port)
    holding = threading.Thread(target=made.hold_connections, daemon=True)
    holding.start()
    while made.opened < CONNECTIONS:
        time.sleep(0.01)
    told.send(None)
    made.upload_all()
    made.over.set()
    holding.join(30)
    told.send({"connections": made.opened, "uploads": dict(made.answers)})


def watch_memory(pid: int, over: threading.Event, seen: list[int]) -> None:
    while not over.wait(0.05):
        seen.append(memory_of(pid))


def clicks_under_attack(port: int, pid: int, inspection: str) -> dict[str, Any]:
    """Figures of the attack; `inspection` is that in which clicks are made."""
    ours, theirs = multiprocessing.Pipe()
    attacking = multiprocessing.get_context("fork").Process(target=attack, args=(port, theirs), daemon=True)
    before, over, seen = memory_of(pid), threading.Event(), [0]
    watching = threading.Thread(target=watch_memory, args=(pid, over, seen), daemon=True)
    attacking.start()
    watching.start()
    ours.recv()
    began, clicks, failed = time.monotonic(), [], 0
    while (not ours.poll() or len(clicks) < LEAST_CLICKS) and time.monotonic() - began < LONGEST:
        at = time.monotonic()
        try:
            status, content = ask(port, "GET", f"/api/inspections/{inspection}/maps?row=0.5&col=0.5")
        except (OSError, http.client.HTTPException):
            status, content = 0, b""
        clicks.append(time.monotonic() - at)
        failed += status != 200 or not content
        time.sleep(0.1)
    seconds = time.monotonic() - began
    over.set()
    attacked = ours.recv() if ours.poll(30) else {}
    attacking.terminate()
    return {
        "seconds": round(seconds, 1),
        **attacked,
        "clicks": len(clicks),
        "clicks_without_answer": failed,
        "median_click_seconds": round(statistics.median(clicks), 4),
        "slowest_click_seconds": round(max(clicks), 4),
        "memory_before_mib": before // 2**20,
        "largest_memory_mib": max(seen) // 2**20,
    }


def measure() -> dict[str, Any]:
    command = [sys.executable, "-m", "nearsight", "explore", "convit_tiny", "--port", "0", "--no-open"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = next(word for word in server.stdout.readline().split() if word.startswith("http://"))
        port = int(address.rstrip("/").rpartition(":")[2])
        body = json.dumps({"model": 0, "step": None, "picture": "sample-0"}).encode()
        inspection = json.loads(ask(port, "POST", "/api/inspections", body)[1])["id"]
        figures = clicks_under_attack(port, server.pid, inspection)
        ask(port, "GET", "/api/models")  # it is there still
        return figures
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(timeout=60)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the figures to this .json file as well")
    given = parser.parse_args()
    machine = {"processor": platform.processor() or platform.machine(), "cpus": os.cpu_count()}
    content = json.dumps({"machine": machine, "load_before": os.getloadavg()[0], **measure()}, indent=1)
    print(content)
    if given.out is not None:
        given.out.write_text(content + "\n")
