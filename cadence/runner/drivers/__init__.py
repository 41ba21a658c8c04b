"""How the host drives the forwards of a device, a `ForwardDriver` (`runner/driver.py`) each: one that queues work
(`queued`), or a CPU, which computes in turns while the host waits (`turns`). `runner/features/setup.py` imports
`choose`, and nothing else in the runner imports this folder."""
