"""Generation: images to objects."""
