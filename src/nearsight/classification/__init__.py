"""Image classification, whole: recipe, data, model, loss, report, use."""
