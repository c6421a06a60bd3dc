"""What an ablation and a sweep share: the session of their command, and what is prepared for their runs."""
