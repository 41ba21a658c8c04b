"""What towers make of pictures and sounds: `encode` keeps it in the encoder cache and puts it among a forward's tokens,
`rope` says where tokens stand whose positions have axes. Imports `core`, `models` and `runner`;
`runner/features/setup.py` imports it."""
