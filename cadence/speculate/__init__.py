"""Proposers: who proposes drafts (`proposer` is the interface), which one an engine gets, and how drafts are verified
(`choose`).

Without a model: `ngram` (prompt lookup) and `suffix` (earlier texts). Models that draft for the target: `draft_lm` is a
smaller one, `draft_model` any of them with its place among the target's keys, `load` makes it from files. Imports
models, sample and kernels; `runner/features` and executors import it.
"""
