"""Results to commit: an experiment's numbers with the detections they follow from, and the check that they do."""
