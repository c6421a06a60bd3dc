"""Data: readers, the unified sample, target sequences, images and batches."""
