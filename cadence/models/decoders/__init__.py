"""Families of decoders beyond those of `cadence.models`, one file each on the same blocks. Imports `models`, its
`interface` and `layers`, and a file here where a family is a variant of another; the registry finds families by name."""
