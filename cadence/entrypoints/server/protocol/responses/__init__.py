"""The shapes of /v1/responses: its body (`responses`, `response_messages`, `response_tools`), its answer and events
(`responses_answer`, `response_items`, `response_view`, `response_raw`), and what one that is kept is asked for
(`response_query`)."""
