"""Drafts on the host: how many each row may have, how many were kept (`feature`), and how far a draft model lags
(`progress`).

`policy` chooses their number: it learns from how often drafts are right (`acceptance`) and what forwards cost
(`cost`), by comparing speeds (`choice`) and trying drafts again now and then (`probes`).
"""
