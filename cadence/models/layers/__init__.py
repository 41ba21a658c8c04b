"""The blocks that models are made of: each holds a `weight`, which does the multiplying.

`rank_share` says what one rank holds; `joined` has the weights that ranks share. Imports `kernels/interface` and
`models/interface`; models, `lora` and loaders import it.
"""
