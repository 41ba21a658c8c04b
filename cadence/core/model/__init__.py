"""What is known of a model before it is loaded: its family, its heads, what its layers keep. Imports `core`."""
