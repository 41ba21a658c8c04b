"""Options, and the one frozen `EngineConfig` that `config/resolve` makes of them, of the model and of the device.

`args` and `serve_options` are what users may ask for; `cli` turns their fields into flags. `reference` finds the files
of a model, `hf` reads its description, `supported` says whether it is served. `env` alone reads the environment, and
`peer_env` says which of vLLM's variables work here. Imports core and `gguf`; no torch. Every folder but core and `gguf`
may import it.
"""
