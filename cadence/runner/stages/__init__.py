"""A model in stages, one after another on several devices: what those before the last do (`stage_loop`), and how the
last broadcasts to them (`earlier_stages`). `runner/features/setup.py` imports both, and nothing else in the runner."""
