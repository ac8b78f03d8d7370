"""Training processes for fault tests, and what two runs are compared by."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
TIMING = ("images_per_second", "data_wait")


@dataclass(frozen=True)
class Ended:
    code: int
    text: str


class Child:
    """A training process that was started and not yet waited for."""

    def __init__(self, zygote: Zygote, pid: int, output: Path) -> None:
        self.zygote, self.pid, self.output = zygote, pid, output
        self._began_at = output.stat().st_size if output.exists() else 0

    @property
    def text(self) -> str:
        return self.output.read_text()[self._began_at :] if self.output.exists() else ""

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid, number)

    def wait_for(self, words: str, seconds: float = 60.0) -> None:
        """Until the process has printed ``words``."""
        deadline = time.monotonic() + seconds
        while words not in self.text:
            if time.monotonic() > deadline:
                raise AssertionError(f"{words!r} was not printed in {seconds} s; printed: {self.text[-2000:]}")
            time.sleep(0.005)

    def end(self) -> Ended:
        code = self.zygote.ask({"wait": self.pid})
        return Ended(code, self.text)


def training_environment() -> dict[str, str]:
    """For training processes: one thread each, and these helpers beside what Python finds already."""
    path = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}


class Zygote:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "zygote.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=training_environment(),
        )
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        self._out, self._in = self._process.stdout, self._process.stdin
        assert self._out.readline() == "ready\n"

    def ask(self, request: dict) -> int:
        self._in.write(json.dumps(request) + "\n")
        self._in.flush()
        return json.loads(self._out.readline())

    def start(self, run: Path, **spec) -> Child:
        output = Path(spec.get("output", f"{run}.out"))
        child = Child(self, 0, output)
        child.pid = self.ask({"start": {"run": str(run), "output": str(output), **spec}})
        return child

    def run(self, run: Path, **spec) -> Ended:
        return self.start(run, **spec).end()

    def close(self) -> None:
        self._in.close()
        self._out.close()
        self._process.wait(timeout=30)


def outcome(run: Path) -> tuple[dict[str, str], list[dict]]:
    """(hashes of all tensors at the end, the log without timings): what must not depend on what happened on the way."""
    last = json.loads((run / "checkpoints" / "last.json").read_text())["checkpoint"]
    manifest = json.loads((run / "checkpoints" / last / "MANIFEST.json").read_text())
    hashes = {name: entry["sha256"] for name, entry in manifest["files"].items() if name.endswith(".safetensors")}
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return hashes, [{key: value for key, value in line.items() if key not in TIMING} for line in lines]


def assert_same_outcome(run: Path, reference: Path) -> None:
    hashes, log = outcome(run)
    expected_hashes, expected_log = outcome(reference)
    assert log == expected_log
    assert hashes == expected_hashes
    assert not [path for path in run.rglob("*") if ".tmp-" in path.name]
