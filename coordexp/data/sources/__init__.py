"""Readers: annotation files to samples."""
