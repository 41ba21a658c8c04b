"""Contents that a model's encoder reads: `encode` computes them and leaves their keys in the KV cache, `rows` says how
far each row sees there. Imports `core`, `models` and `runner`; `runner/features/setup.py` imports it."""
