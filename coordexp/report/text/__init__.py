"""Tables and files of text."""
