"""Encoders, one file per family on the shared `models/encoder.py`: BERT, and what came of it. Imports `models` and its
`interface` and `layers`; the registry finds families by name."""
