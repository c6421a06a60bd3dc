"""Detection: boxes, matching and average precision."""
