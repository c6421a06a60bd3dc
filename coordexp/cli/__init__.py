"""The command line: ``main`` has the parser, each verb is a file."""
