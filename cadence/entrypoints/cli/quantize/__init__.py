"""`cadence quantize`: its texts, perplexity, and the README of the checkpoint it writes (`card`). Imports
`models/quantize`, `entrypoints` and `shared`."""
