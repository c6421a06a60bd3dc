"""Trials: points of a space, each a short run, which a sweep and the tuning of an ablation have in common."""
