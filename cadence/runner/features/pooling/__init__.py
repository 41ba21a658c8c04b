"""Hidden states of prompts, pooled: `rows` collects them as forwards compute them, `finish` makes the values that
requests asked for. Imports `core`, `models` and `runner`; `runner/features/setup.py` imports it."""
