"""``python -m coordexp doctor``: tells, without loading weights, whether a run would start."""
