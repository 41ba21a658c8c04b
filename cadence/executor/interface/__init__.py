"""What the engine knows of an executor."""
