"""Commands of `nearsight`, in this process."""

from nearsight.cli.verbs import app


def nearsight(*words):
    """What a verb returns; a mistake is an exception."""
    return app([str(word) for word in words], exit_on_error=False, print_error=False)
