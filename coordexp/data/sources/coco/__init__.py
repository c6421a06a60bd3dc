"""COCO and LVIS as a source."""
