"""An adapter baked into its base."""
