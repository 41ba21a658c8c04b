"""Tool calls, read out of a model's text as it streams, and calls that a model is held to.

`format` is one line of the table in `formats`, `stream` is the one machine that reads all formats,
`held_call` has calls that come whole or not at all. `forced` makes structural tags in a format's `call_form`;
`schema_budget` bounds how much of the schemas of a request is read. Imports core alone; `chat` imports it.
"""
