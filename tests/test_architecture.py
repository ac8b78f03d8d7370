"""The architecture page tells the path of one picture, file by file: each file that it names takes part in training."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).parents[1]
MOST_FILES = 36
TRACED = """
import importlib, json, pkgutil, sys, threading
import nearsight
for module in pkgutil.walk_packages(nearsight.__path__, "nearsight."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
ran, root = set(), nearsight.__path__[0] + "/"
def note(frame, event, argument):
    if event == "call" and frame.f_code.co_filename.startswith(root):
        ran.add(frame.f_code.co_filename.removeprefix(root))
sys.setprofile(note); threading.setprofile(note)
from nearsight.cli.app import main
sys.argv = ["nearsight", *sys.argv[1:]]
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
finally:
    sys.setprofile(None)
    print("\\n" + json.dumps(sorted(ran)))
"""


def files_on_the_way() -> list[str]:
    page = (ROOT / "docs" / "architecture.md").read_text()
    section = page[page.index("## The path of one picture") : page.index("`nearsight predict RUN picture.jpg`")]
    return re.findall(r"`([a-z_/]+\.py)`", section)


def test_a_picture_passes_the_files_that_the_page_names(tmp_path):
    generator = np.random.default_rng(0)
    for label, name in enumerate(("cat", "dog")):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(12):
            pixels = generator.integers(0, 128, (20, 24, 3), dtype=np.uint8) + 120 * label
            Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "pictures" / name / f"{number}.png")
    settings = "--model convit_nano_32 --image-size 16 --patch-size 8 --epochs 1 --batch 8 --device cpu --show quiet"
    options = [*settings.split(), "--model-options.depth", "3", "--val-fraction", "0.3", "--run", "run"]
    command = [sys.executable, "-c", TRACED, "train", "pictures", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr[-2000:]
    ran = set(json.loads(done.stdout.splitlines()[-1]))
    told = files_on_the_way()
    assert len(told) == len(set(told)), "a picture passes each file once"
    assert set(told) <= ran, f"did not take part: {sorted(set(told) - ran)}"
    assert 20 < len(told) <= MOST_FILES
