"""Boxes that a limit on objects or tokens takes away."""
