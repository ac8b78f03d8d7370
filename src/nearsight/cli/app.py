"""The front door: `nearsight VERB …`."""

import sys

from nearsight.cli import interrupts


def main() -> None:
    """Run a verb; a user's mistake becomes one line and exit code 2, Ctrl-C one line and 130, a verb's own integer its
    exit code."""
    interrupts.listen()
    try:
        from cyclopts import CycloptsError  # not earlier: Ctrl-C may come while they load

        from nearsight.cli.verbs import app

        try:
            result = app(exit_on_error=False)
        except CycloptsError:  # which has been printed
            sys.exit(2)
    except (ValueError, OSError) as error:
        print(f"nearsight: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print(interrupts.WORDS, file=sys.stderr)
        sys.exit(interrupts.CODE)
    sys.exit(result if isinstance(result, int) else 0)
