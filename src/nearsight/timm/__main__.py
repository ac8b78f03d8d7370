"""`python -m nearsight.timm SCRIPT …` runs a script, such as timm's validate.py, that then knows our models."""

import runpy
import sys

import nearsight.timm  # noqa: F401 - registers them

if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python -m nearsight.timm SCRIPT [its arguments], such as timm's validate.py")
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
