"""Coordinate tokens: their codec, vocabulary, sequence layout, losses and adapter."""
