"""Drafts on the host: how many each row may have, how many were kept (`feature`), and how far a draft model lags
(`progress`). Their number is chosen by a `Drafts` (`drafts.py`, by `policy.py`)."""
