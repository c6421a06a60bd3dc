"""YOLO's labels as a source."""
