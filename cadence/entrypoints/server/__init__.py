"""The HTTP server, which speaks OpenAI's and Anthropic's protocols: the application and the processes around it.

`app` puts routes and layers together, `openapi` describes them. `server` is the process: signals, a deadline for its
exit, and `loop_watchdog`, which notices a stuck event loop so that `replacement` restarts the server, which goes on
with its answers (`resume`). With several API processes, `api_servers` starts each (`api_child`, all: `api_children`),
`acceptor` deals connections out, `api_process` serves them, `shared_adapters` has the one table of adapters, and
`shared_control` pauses the engines, puts them to sleep and changes their weights for all that ask (`control_link`).
Imports the folders below and `webui`; the shell imports it.
"""
