"""Every verb of `nearsight`. They are loaded when called, so that `nearsight --help` answers at once."""

from cyclopts import App

from nearsight.cli.version import version

app = App(
    name="nearsight",
    help="Vision models that start near-sighted and learn how far to look.",
    version=version,
    result_action="return_value",
    suppress_keyboard_interrupt=False,  # the front door has a word to say
)
# A list of verbs shows the first line of each, a verb's own help all of them.
_TRAIN = """Train a model on a folder of pictures, a known data set, arrays or shards.

Settings come from a named recipe, then from --config, then from the options below. The defaults shown are those of the
recipe small; `nearsight recipes` shows every recipe's. A run can be killed at any instant; `nearsight resume` goes on.
"""
VERBS = (
    ("train", "training:train", _TRAIN),
    ("resume", "training:resume", "Go on with a run that was stopped, killed or interrupted."),
    ("eval", "training:evaluate", "Measure a run's model on a data set."),
    ("predict", "training:predict", "Say what is on pictures."),
    ("compare", "compare:compare", "Compare runs: mean and spread over seeds, and whether a difference is real."),
    ("inspect", "inspect:inspect", "See where heads look: locality, gates, and the papers' figures."),
    ("explore", "explore:explore", "Click through attention maps in a web page."),
    ("detect", "detect:app", "Train detectors on images with boxes, measure them and use them."),
    ("recipes", "recipes:recipes", "Show what the named recipes set, side by side."),
    ("models", "models:models", "List every model with its cost, beside what its paper reports."),
    ("demo", "demo:demo", "Train a small ConViT and its plain twin on real pictures, and compare them."),
)
for _verb, _place, _what in VERBS:
    app.command(f"nearsight.cli.{_place}", name=_verb, help=_what)
_bench = App(name="bench", help="Measure layers or models against their peers, side by side.")
_bench.command("nearsight.cli.bench:layers", name="layers", help="Local attention against its peers, stage by stage.")
_bench.command("nearsight.cli.bench:models", name="models", help="Whole models against their peers.")
app.command(_bench)
