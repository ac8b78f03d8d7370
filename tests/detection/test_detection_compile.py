"""A training step of detection can be traced whole: no host reads, no shapes that depend on values."""

import torch

from nearsight.detection.data import ResidentPictures
from nearsight.detection.outputs import BoxTargets, detection_loss
from nearsight.detection.sources import open_detection
from nearsight.detection.views import ViewSettings
from nearsight.images.epochs import epoch_order
from nearsight.models import create_model


def test_the_whole_step_is_one_graph():
    cells = open_detection("bccd").val
    pictures = ResidentPictures(cells, ViewSettings(size=(64, 96)), cells.most_boxes(), "cpu")
    order = epoch_order(len(cells), 0, 0)
    inputs = pictures(order.indices[:2], order.keys[:2], {})
    shape = {"layers": (1, 1, 1, 1), "width_multiplier": 0.25, "channels": 16, "head_depth": 1, "num_classes": 3}
    model = create_model("retinanet_sasa_resnet26_convstem_attention", backend="reference", **shape)

    def step(index, view, boxes, labels):
        return detection_loss(model(pictures.pictures(index, view)), BoxTargets(boxes, labels)).total

    arguments = [inputs[key] for key in ("index", "view", "boxes", "labels")]
    model.eval()
    expected = step(*arguments)
    traced = torch.compile(step, backend="eager", fullgraph=True, dynamic=False)
    torch.testing.assert_close(traced(*arguments), expected)
