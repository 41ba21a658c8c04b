"""`cadence quantize`."""
