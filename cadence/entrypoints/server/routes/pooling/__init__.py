"""The endpoints that give values in place of text, and what they share: `work` checks a request and runs its texts,
`prompts` and `pairs` make tokens of them. Imports `routes/state.py` and what that may import; only the application
imports it."""
