"""The charts of a study: each function says what is drawn, how it is called and how to read it."""
