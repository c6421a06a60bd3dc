"""Average precision, counted from matches."""
