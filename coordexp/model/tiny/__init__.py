"""The small base that ships with the package."""
