"""Quantised checkpoints from others: a matrix's `grid` is chosen (`choose`), its rounding errors are compensated
(`compensate`, by inputs that `observed` has seen), and its tensors are written (`stored`, `checkpoint_writer`).

`checkpoint` does all of it, `formats` lists what can be written, `data` has texts for calibration. Imports `loader`,
`quant` and `layers`; `cadence quantize` imports it.
"""
