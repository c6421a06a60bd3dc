"""The grammar of a target sequence: write it, read it, constrain its generation."""
