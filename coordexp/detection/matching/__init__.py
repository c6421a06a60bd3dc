"""Which detection matches which ground-truth box."""
