"""The engine process as its front knows it: its client, its supervisor, and the journal of what goes on after a crash.

`supervision`, `journal`, `control_journal`, `lifecycle` and `watchdog` decide, without clocks or sockets; `supervisor`,
`async_client` and `engine_link` do the I/O. `engine_group` restarts engines that share experts together. Imports
nothing else of `engine`; `fleet`, `engine` and `entrypoints` import it.
"""
