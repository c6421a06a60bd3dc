"""What runs say: everything a report shows."""
