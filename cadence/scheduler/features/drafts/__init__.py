"""Drafts on the host: how many each row may have, how many were kept (`feature`), and how far a draft model lags
(`progress`).

A `Drafts` (`drafts`) chooses their number; `policy` learns it, from how often drafts are right (`acceptance`) and what
forwards cost (`cost`), by comparing speeds (`choice`) and trying drafts again now and then (`probes`).
"""
