"""Evaluation: generate, parse, score, and COCO's own AP."""
