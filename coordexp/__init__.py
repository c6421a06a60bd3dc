"""Controlled experiments on coordinate losses for vision-language detectors."""
