"""Hidden states of prompts, pooled: `rows` collects them as forwards compute them, `finish` makes the values that
requests asked for, `pairs` tells two texts of a prompt apart. Imports `core`, `models` and `runner`;
`runner/features/setup.py` imports it."""
