"""The command line: one parser, one file a verb."""
