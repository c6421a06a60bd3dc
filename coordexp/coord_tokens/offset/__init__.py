"""The parts of the coord-offset adapter."""
