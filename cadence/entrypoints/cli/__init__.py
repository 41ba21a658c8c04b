"""The command `cadence`, a file or a folder per subcommand; `main` imports the one that is called. It may import
everything, lazily; only `cadence/__main__.py` and `cadence/vllm` import it."""
