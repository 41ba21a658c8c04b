"""Quantised checkpoints from others: formats, scales, errors made up for by calibration, files."""
