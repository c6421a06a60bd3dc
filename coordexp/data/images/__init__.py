"""Images: files to pixels to patches."""
