"""Groups x seeds: the campaign of an ablation."""
