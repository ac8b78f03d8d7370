"""Equations, layers and models read like the papers: nothing in them is about who calls them or what runs them."""

import re
from pathlib import Path

import pytest

import nearsight

PACKAGE = Path(nearsight.__file__).parent
FORBIDDEN = (
    "hook", "tracer", "tracing", "traced", "watched", "exporting", "intercept", "dynamo", "inductor", "glibc", "malloc",
    "mkl", "onednn", "cudnn", "page fault", r"torch\._", r"\._C\b", r"is_meta\b", "compat import", "functorch",
)  # fmt: skip


@pytest.mark.parametrize("room", ["functional", "nn", "models"])
def test_no_word_of_what_speed_needs(room):
    words = re.compile("|".join(FORBIDDEN), re.IGNORECASE)
    found = [
        f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}"
        for path in sorted((PACKAGE / room).glob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if words.search(line)
    ]
    assert not found, "put what makes models faster into nearsight/acceleration.py or kernels/:\n" + "\n".join(found)
