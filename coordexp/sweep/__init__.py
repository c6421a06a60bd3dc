"""The search of loss weights."""
