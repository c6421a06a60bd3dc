"""The trainer core: one run, from a resolved config to a merged checkpoint. Knows nothing of Ray."""
