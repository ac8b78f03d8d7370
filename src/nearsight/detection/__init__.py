"""Object detection, whole: boxes, readers, model, loss, mAP, recipe, report, use."""
