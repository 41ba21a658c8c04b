"""Duet for Cadence. Nothing is imported before a model of it is loaded."""
