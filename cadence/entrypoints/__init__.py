"""What users call: `LLM`, and `AsyncLLM` with its engine in another process, each also under vLLM's calling conventions
(`engine_args`, `async_engine`). `offline_requests` and `open_requests` are the requests of one, from their way to the
engine to their last outputs; `offline_pooling` and `offline_scoring` ask for values in place of text. `engine_control`
pauses engines, puts them to sleep and changes their weights; `front_hold` is what requests notice of that. `interrupts`
keeps Ctrl-C between two steps. Imports `engine` and below; the server, the shell and `cadence/vllm` import it."""
