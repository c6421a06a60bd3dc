"""What a run is made of, and whether two runs may be compared."""
