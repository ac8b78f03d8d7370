"""The oldest versions that pyproject.toml allows, as a file of constraints for pip: `make test-oldest` tests with them.

    python scripts/oldest_versions.py [EXTRA ...] > oldest.txt && pip install -c oldest.txt '.[EXTRA,…]'

Only what is named in pyproject.toml is held back; what these packages need themselves is the newest that they take.
Needs Python 3.11.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path

import tomllib
from packaging.requirements import Requirement

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"


def requirements(extras: Iterable[str], project: Path = PROJECT) -> list[Requirement]:
    """The requirements of the package with these extras that this Python installs."""
    table = tomllib.loads(project.read_text())["project"]
    optional = table["optional-dependencies"]
    listed = [*table["dependencies"], *(word for extra in extras for word in optional[extra])]
    parsed = map(Requirement, listed)
    return [one for one in parsed if one.name != table["name"] and (one.marker is None or one.marker.evaluate())]


def floors(wanted: Iterable[Requirement]) -> Iterator[str]:
    """`name==version` for each; a ``ValueError`` names one without a lower bound."""
    for one in wanted:
        bounds = [part.version for part in one.specifier if part.operator == ">="]
        if len(bounds) != 1:
            raise ValueError(f"{one} has no lower bound: any version of it would be allowed, however old")
        yield f"{one.name}=={bounds[0]}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("extras", nargs="*", help="extras of the package, as in pyproject.toml")
    print("\n".join(floors(requirements(parser.parse_args().extras))))
