"""Drafts beside the scheduler: how many rows may have, what became of them, and how far a model that makes them lags.
Who chooses their number is a `Drafts` (`scheduler/features/drafts/drafts.py`)."""
