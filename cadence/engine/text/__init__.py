"""Prompts in, text out: what becomes of a request beside the tokens of the engine. Imports core, text and process, and
nothing else of `engine` but `metrics`."""
