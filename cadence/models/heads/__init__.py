"""Heads that draft from a target's hidden states: EAGLE, EAGLE-3, MTP modules, Medusa.

`config` reads their files, `family_layers`, `fusion` and `vocabulary_ends` are what they are built of; `data` has heads
that come with the package. Imports `models`, its `layers` and `interface`; `models/loader` imports it.
"""
