"""Drafts on the device: how many each row may have (`rows`), and who makes them: a lookup (`looked_up`) or a model
(`model_drafts`). `waiting_positions` counts states that wait for a head while it makes no drafts. Imports `speculate`
and `sample`."""
