"""Which nearsight this is."""

from importlib.metadata import version as installed_version


def version() -> str:
    return installed_version("nearsight")
