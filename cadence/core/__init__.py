"""Plain data that both halves share: parameters, outputs, attachments, the KV layout, errors. Nothing here imports
torch.

What crosses a boundary between parts is in `contract`. `architectures` names the models that can be run, `block_grids`
has the grids of GGUF's IQ types, `linear_pattern` matches regular expressions of strangers in linear time. Imports
nothing of Cadence; every folder may import it.
"""
