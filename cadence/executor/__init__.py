"""How the engine reaches the device half: executors, the ranks that they drive, and who starts those.

`factory` opens the executor of an engine, `worker_process` is a rank in a process of its own, `headless` a node without
an engine. The engine imports this folder; it imports the runner, `distributed` and `process`, and nothing of the host
half but core and config.
"""
