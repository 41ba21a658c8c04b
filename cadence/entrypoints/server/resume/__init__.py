"""Requests that outlive the process that answered them, when its event loop is stuck.

`hand_over` takes connections and what is needed to run their requests again from the stuck process, `suspects` finds
the request that it is stuck in, `unfinished` is what travels, and `answer` runs a request again and leaves out what its
client has. Imports `http` and `engine.text`; the processes of the server import it.
"""
