"""``coordexp new dataset``: an experiment on data of one's own."""
