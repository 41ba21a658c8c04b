"""How the engine reaches the device half: executors, the ranks that they drive, and who starts those. The engine
imports it; it imports the runner, `distributed` and `process`, and nothing of the host half but core and config."""
