"""Every op in plain torch: it runs anywhere, and is the oracle for the others. Imports `interface`; other kernels,
`models/loader` and `models/quantize` import it."""
