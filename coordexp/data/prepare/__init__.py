"""COCO or LVIS annotations to JSONL and a manifest."""
