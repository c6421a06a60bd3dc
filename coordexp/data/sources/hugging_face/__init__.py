"""Hugging Face's data sets of boxes as a source."""
