"""`cadence bench serve`: prompts (`work`), `load`, figures (`numbers`), plot; its flags, and those of vLLM that have no
option here (`peer_flags`). Imports `remote` and `shared`."""
