"""What a folder of data holds: formats and splits found by content and name."""
