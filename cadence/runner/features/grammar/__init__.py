"""Grammars on the device: masks that come by mail, tokens that a grammar forces, and the drafts that the host must see.
Imports `sample`."""
