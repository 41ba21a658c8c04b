"""Bodies and their limits, admission, API keys, errors, streams. It knows no chat and no endpoint.

`stream` writes server-sent events, `outbox` those of all streams together, `direct` text of the engine without waking
the reader of its stream; what is used of uvicorn beyond its documentation lies in `uvicorn_private`. Imports `engine`
and below, and uvicorn; every folder of the server may import it.
"""
