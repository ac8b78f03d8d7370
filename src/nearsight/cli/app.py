"""The front door: `nearsight VERB …`. Verbs are loaded when called, so that `nearsight --help` answers at once."""

import sys

from cyclopts import App

from nearsight.cli.version import version

app = App(
    name="nearsight",
    help="Vision models that start near-sighted and learn how far to look.",
    version=version,
    result_action="return_value",
)
for _verb, _place, _what in (
    ("models", "models:models", "List every model with its cost, beside what its paper reports."),
    ("detect", "detect:app", "Train detectors on images with boxes, measure them and use them."),
):
    app.command(f"nearsight.cli.{_place}", name=_verb, help=_what)


def main() -> None:
    """Run a verb; a user's mistake becomes one line and exit code 2, a verb's own integer its exit code."""
    try:
        result = app()
    except (ValueError, OSError) as error:
        print(f"nearsight: {error}", file=sys.stderr)
        sys.exit(2)
    sys.exit(result if isinstance(result, int) else 0)
