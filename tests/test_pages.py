"""What README and pages print works: verbs and options exist, blocks of Python run, files that are named are there."""

import inspect
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
FOLDERS = "benchmarks|docs|recipes|results|scripts|src|tests"
WRITTEN_LATER = {"results/reproduction"}  # by `nearsight reproduce`
ABOUT_BOXES = re.compile(r"BOXES|bccd|retinanet|cells|detection")


def commands(page: Path) -> list[str]:
    """Lines of code that call nearsight, and calls within a line of text, without comments."""
    text = page.read_text()
    blocks = re.findall(r"^```\n(.*?)^```|^((?:    .*\n)+)", text, re.MULTILINE | re.DOTALL)
    whole = [block.replace("\\\n", " ") for pair in blocks for block in pair]  # a backslash continues a line
    lines = [line.strip() for block in whole for line in block.splitlines()]
    lines += re.findall(r"`(nearsight [^`\n]+)`", text)
    called = [line[line.index("nearsight ") :] for line in lines if re.search(r"(^|-- )nearsight [a-z]", line)]
    return [line.split("  #")[0].split(" # ")[0] for line in called]


@cache
def options_of(verb: str, about_boxes: bool) -> set[str]:
    task = ["--task", "detection"] if verb == "train" and about_boxes else []
    start = "from nearsight.cli.app import main; main()"
    words = [*verb.split(), *task, "--help"]
    done = subprocess.run(
        [sys.executable, "-c", start, *words], capture_output=True, text=True, timeout=120,
        env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    assert done.returncode == 0, f"nearsight {verb}: {done.stderr}"
    return set(re.findall(r"--[a-z][a-z0-9-]*", done.stdout))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_printed_commands_have_the_options_that_they_print(page):
    for command in commands(page):
        words = command.split()[1:]
        verb = " ".join(words[:2]) if words[0] == "bench" and len(words) > 1 else words[0]
        if verb == "bench" or not re.fullmatch(r"[a-z ]+", verb):
            continue
        known = options_of(verb, bool(ABOUT_BOXES.search(command)))
        used = {word.partition("=")[0].partition(".")[0] for word in words if word.startswith("--") and len(word) > 2}
        assert used <= known, f"{page.name}: `{command}` has {sorted(used - known)}"


def test_commands_are_found():
    found = [command for page in PAGES for command in commands(page)]
    assert len(found) > 40
    assert {command.split()[1] for command in found} >= {"train", "resume", "eval", "predict", "compare", "explore"}


def python_of(page: Path) -> str:
    return "\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("page", [page for page in PAGES if python_of(page)], ids=lambda page: page.name)
def test_printed_python_runs(page, monkeypatch, tmp_path):
    from nearsight.engine import training

    wanted = inspect.signature(training.train)  # a training would take minutes: its arguments are checked, no more
    monkeypatch.setattr(training, "train", lambda *words, **named: wanted.bind(*words, **named))
    monkeypatch.chdir(tmp_path)
    exec(compile(python_of(page), page.name, "exec"), {})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_are_there(page):
    text = page.read_text()
    links = {link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link}
    named = set(re.findall(rf"\b(?:{FOLDERS})/[\w./-]*\w", re.sub(r"\]\([^)]*\)", "]", text)))
    missing = [link for link in links if link and not (page.parent / link).exists()]
    missing += [name for name in named - WRITTEN_LATER if not (ROOT / name).exists()]
    assert not missing
