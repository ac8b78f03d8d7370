"""Decodes pictures from strangers in a process of its own, with limits of time and memory.

A decoder that crashes, loops or asks for gigabytes takes that process with it, and the next picture gets a new one.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

import numpy as np

from nearsight.images.decode import Limits, decode_image
from nearsight.images.imageset import BadImage

MAX_BODY = 10 * 2**20
UPLOAD_LIMITS = Limits(max_pixels=24_000_000, max_side=20_000, max_bytes=MAX_BODY)
DECODE_SECONDS = 10.0
DECODE_MEMORY = 2**30
"""Of address space; a picture of the most pixels, with transparency, takes about half of it."""

_LENGTH = struct.Struct("<Q")
_ANSWER = struct.Struct("<QQ")  # height and width, or 0 and the length of a sentence
_START = "from nearsight.explorer.decoder import work; work({memory})"


class Decoder:
    """One process, which is started when it is needed, for one picture at a time. Threads wait for each other."""

    def __init__(self, *, seconds: float = DECODE_SECONDS, memory: int = DECODE_MEMORY) -> None:
        self._seconds, self._memory = seconds, memory
        self._turn = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def decode(self, data: bytes, name: str) -> np.ndarray:
        """The picture as uint8 [H, W, 3]; ``BadImage`` where it cannot be read, or not within the limits."""
        with self._turn:
            process = self._running()
            late = threading.Event()

            def stop() -> None:
                late.set()
                process.kill()

            timer = threading.Timer(self._seconds, stop)
            timer.start()
            ended = False
            try:
                return self._ask(process, data, name)
            except (OSError, EOFError):
                ended = True
                reason = (
                    f"decoding takes longer than {self._seconds:g} seconds" if late.is_set() else "its decoder died"
                )
                raise BadImage(name, reason) from None
            finally:
                timer.cancel()
                if ended or late.is_set():
                    self._end()

    def close(self) -> None:
        """End the process."""
        with self._turn:
            self._end()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._end()
            package = str(Path(__file__).resolve().parents[2])
            path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
            # One thread: each other one of a library of linear algebra would have its own share of address space.
            threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START.format(memory=self._memory)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **threads, "PYTHONPATH": path},
            )
        return self._process

    def _ask(self, process: subprocess.Popen[bytes], data: bytes, name: str) -> np.ndarray:
        assert process.stdin is not None
        process.stdin.write(_LENGTH.pack(len(data)) + data)
        process.stdin.flush()
        height, width = _ANSWER.unpack(_read(process.stdout, _ANSWER.size))
        if not height:
            raise BadImage(name, _read(process.stdout, width).decode("utf-8", "replace"))
        if height * width > UPLOAD_LIMITS.max_pixels:
            raise EOFError  # no answer of a process in good order
        return np.frombuffer(_read(process.stdout, height * width * 3), np.uint8).reshape(height, width, 3)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with contextlib.suppress(OSError):  # what was not taken any more is dropped
                process.communicate()


def _read(stream: IO[bytes] | None, count: int) -> bytes:
    assert stream is not None
    content = stream.read(count)
    if len(content) < count:
        raise EOFError
    return content


def work(memory: int) -> None:
    """What the process does: pictures from standard input, pixels to standard output, until its parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is for the server, which ends this process as well
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    given, answers = sys.stdin.buffer, sys.stdout.buffer
    while length := given.read(_LENGTH.size):
        data = given.read(*_LENGTH.unpack(length))
        try:
            pixels = decode_image(data, "picture", UPLOAD_LIMITS)
        except BadImage as bad:
            out_of_memory = bad.reason == MemoryError.__name__
            reason = (f"decoding takes more than {memory // 2**20} MB" if out_of_memory else bad.reason).encode()
            answers.write(_ANSWER.pack(0, len(reason)) + reason)
        else:
            answers.write(_ANSWER.pack(*pixels.shape[:2]))
            answers.write(np.ascontiguousarray(pixels).data)
            del pixels
        del data
        answers.flush()
