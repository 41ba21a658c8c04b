"""The blocks models are made of."""
