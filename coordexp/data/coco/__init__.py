"""COCO's and LVIS's annotation files: read to typed entries, and written from arrays."""
