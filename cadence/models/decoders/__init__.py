"""Families of decoders beyond those of `cadence.models`, one file each on the same blocks. Imports `models`, its
`interface` and `layers`, and another family where one is its variant; the registry finds families by name."""
