"""Pure data: domains of images and labels, splits, client partitions, transforms."""
