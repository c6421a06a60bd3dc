"""What a name in another tool's file means: an image or a category of the annotations."""
