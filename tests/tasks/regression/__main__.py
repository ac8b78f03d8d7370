"""The command line of nearsight, with one task more."""

from nearsight.cli.app import main
from nearsight.tasks import register
from regression import KIND

register(KIND)
main("python -m regression")
