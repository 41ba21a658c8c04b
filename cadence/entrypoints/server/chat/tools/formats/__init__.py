"""The built-in formats of tool calls by name (`registry`): those of JSON (`in_json`), those between tags (`in_tags`),
and others (`other`). Imports `tools`; `chat` imports it."""
