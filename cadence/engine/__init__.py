"""The engine: its loop (`core`), the process around it (`core_process`, `core_loop`), and how it is put together
(`build`).

`intake` holds requests that are not ready to be scheduled: their grammar is being compiled (`grammar_preparer`) or
their adapter read (`adapter_preparer`). `fronts` are the clients of an engine process. `llm_engine` is the synchronous
engine; `dp_core` stands in for its core where there are several engines. `source` reads a model's files without a
device. Imports the folders below it, `scheduler`, `structured`, `text`, `process` and `executor`; `entrypoints` import
it.
"""
