"""The forms in which other tools write detections and answers."""
