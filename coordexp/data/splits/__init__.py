"""Which images a run trains and is validated on."""
