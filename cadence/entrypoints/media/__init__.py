"""Pictures and videos of prompts, for an event loop: fetched and decoded beside it, within bounds of memory. Imports
`media` and `text`; the server, `LLM` and `speech` import it."""
