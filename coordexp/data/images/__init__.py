"""Image files: headers, pixels, orientation, patches, and finding a picture by the name that an annotation gives it."""
