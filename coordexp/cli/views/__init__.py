"""What verbs show that is more than a few lines: tables, and samples with their boxes."""
