"""What happens around the optimizer steps."""
