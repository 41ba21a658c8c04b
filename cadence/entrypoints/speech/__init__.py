"""Recordings to text with an engine, for the server and the shell.

`requests` is what a user may ask for, `events` what comes back while a recording is read, `recordings` reads files
beside the event loop, `transcriber` drives the engine window by window. Imports audio, core and the engine's front;
entrypoints/server and entrypoints/cli import it.
"""
