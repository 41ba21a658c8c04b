"""Logits to tokens: `pipeline` runs the logits steps that some row uses, draws, and takes logprobs.

Each step is a file: penalties, bias, bad words, min tokens, masks, thinking budget, speech, custom processors.
`context` is what a step gets, `filters` and `sampler` draw, `rejection` verifies drafts by their
`draft_distributions`. Imports kernels and device; `runner`, its features and `speculate` import it.
"""
