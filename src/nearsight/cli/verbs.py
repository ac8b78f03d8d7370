"""Every verb of `nearsight`. They are loaded when called, so that `nearsight --help` answers at once."""

from importlib.metadata import version

from cyclopts import App

app = App(
    name="nearsight",
    help="Vision models that start near-sighted and learn how far to look.",
    version=lambda: version("nearsight"),
    result_action="return_value",
    suppress_keyboard_interrupt=False,  # `app.main` has a word to say
)
VERBS = (
    ("train", "training:train", "Train a model on images with classes or with boxes."),
    ("resume", "training:resume", "Go on with a run that was stopped, killed or interrupted."),
    ("eval", "using:evaluate", "Measure a run's model on a dataset."),
    ("predict", "using:predict", "Say what is on pictures, or find objects in them."),
    ("compare", "compare:compare", "Compare runs: mean and spread over seeds, and whether a difference is real."),
    ("inspect", "inspect:inspect", "See where heads look: locality, gates, and the papers' figures."),
    ("explore", "explore:explore", "Click through attention maps in a web page."),
    ("recipes", "recipes:recipes", "Show what the named recipes set, side by side."),
    ("models", "models:models", "List every model with its cost, beside what its paper reports."),
    ("demo", "demo:demo", "Train a small ConViT and its plain twin on real pictures, or a small detector."),
)
RAW = {"help_flags": [], "version_flags": [], "end_of_options_delimiter": ""}
"""Of verbs whose options depend on the task: they parse their words, and print their help, themselves."""
for _verb, _place, _what in VERBS:
    _raw = RAW if _verb in ("train", "resume", "eval", "predict") else {}
    app.command(f"nearsight.cli.{_place}", name=_verb, help=_what, **_raw)
app.command("nearsight.cli.detect:detect", name="detect", show=False, **RAW)
_bench = App(name="bench", help="Measure layers or models against their peers, side by side.")
_bench.command("nearsight.cli.bench:layers", name="layers", help="Local attention against its peers, stage by stage.")
_bench.command("nearsight.cli.bench:models", name="models", help="Whole models against their peers.")
app.command(_bench)
