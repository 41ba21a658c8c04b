"""The engine process as its front knows it: its client, its supervisor, and the journal of what goes on after a crash.
Imports nothing else of `engine`."""
