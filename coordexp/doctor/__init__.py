"""``coordexp doctor``: says, without loading weights, whether a run would start."""
