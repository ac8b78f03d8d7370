"""What users import from the rooms of images and datasets."""

import subprocess
import sys

import pytest

import nearsight.datasets
import nearsight.images


@pytest.mark.parametrize("room", [nearsight.images, nearsight.datasets], ids=lambda room: room.__name__)
def test_public_names_can_be_imported(room):
    assert all(getattr(room, name).__name__ == name for name in room._PUBLIC)
    with pytest.raises(AttributeError, match=f"module '{room.__name__}' has no attribute 'nonsense'"):
        _ = room.nonsense


def test_recognising_data_does_not_wait_for_torch():
    code = (
        "import sys; from nearsight.detection.sources import has_boxes; "
        "print(has_boxes('bccd'), 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "True False\n"
