"""The entry point: `nearsight VERB …`. Ctrl-C at any instant ends with one line and exit code 130.

Imports almost nothing, so that Ctrl-C is handled from the start.
"""

import contextlib
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

from nearsight.text import name_program

CODE, WORDS = 130, "nearsight: interrupted"


def main(program: str = "nearsight") -> None:
    """Run a verb; a user's mistake becomes one line and exit code 2, a verb's own integer its exit code.

    `program` is what a person types to get here, for usage and hints.
    """
    listen()
    name_program(program)
    try:
        from cyclopts import CycloptsError  # not earlier: Ctrl-C may come while they load

        from nearsight.cli.verbs import app

        try:
            result = app(exit_on_error=False, print_error=False)
            sys.stdout.flush()
        except BrokenPipeError:  # nobody reads on, as after `| head`: no mistake to tell of; rich's code
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        except (CycloptsError, ValueError, OSError) as error:
            print(f"nearsight: {error}", file=sys.stderr)
            sys.exit(2)
    except KeyboardInterrupt:
        print(WORDS, file=sys.stderr)
        sys.exit(CODE)
    sys.exit(result if isinstance(result, int) else 0)


def listen() -> None:
    """Take over Ctrl-C until a verb brings its own handler; where it is ignored (as after nohup) it stays ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _receive)


def _leave() -> NoReturn:
    """End this process now. Nothing is unwound: an exception while a C++ library is loading may crash."""
    with contextlib.suppress(Exception):  # the signal may have come in the middle of a print
        sys.stdout.flush()
    os.write(2, f"{WORDS}\n".encode())
    os._exit(CODE)


def _receive(number: int, frame: FrameType | None) -> None:
    if _importing(frame):
        _leave()
    raise KeyboardInterrupt


def _importing(frame: FrameType | None) -> bool:
    """Whether a module is being loaded, anywhere below what runs now."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False
