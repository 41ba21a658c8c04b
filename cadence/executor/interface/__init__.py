"""What the engine knows of an executor: its messages (`base`), and the facts that come with an open one (`opened`).
Imports core, config and device; `engine` and all other folders of executors import it."""
