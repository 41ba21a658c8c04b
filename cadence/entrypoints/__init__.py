"""What users call: `LLM`, and `AsyncLLM` with its engine in another process, each also under vLLM's calling conventions
(`engine_args`, `async_engine`). `interrupts` keeps Ctrl-C between two steps. Imports `engine` and below; the server,
the shell and `cadence/vllm` import it."""
