"""Models: load, adapt, merge; and the small base that ships with the package."""
