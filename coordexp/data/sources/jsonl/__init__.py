"""JSONL and the records of other trainers as a source."""
