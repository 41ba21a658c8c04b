"""Layers that keep a state in place of keys, and what they are made of. Imports `layers`; models import it."""
