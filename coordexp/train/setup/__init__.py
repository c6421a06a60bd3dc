"""What a run is built of before its first step."""
