"""`python -m nearsight VERB …`."""

from nearsight.cli.app import main

main()
