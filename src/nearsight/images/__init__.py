"""Reading images: decoding, order, augmentation and batches, as pure functions of seed, epoch and index."""
