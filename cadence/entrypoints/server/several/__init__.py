"""Several models at one address: each has an engine of its own, which comes when it is asked for and goes when others
need its memory.

`catalog` decides which are in memory, by the books of `residency`; neither knows of HTTP or of engines. `served_model`
is one model with its engine, `models` all of them, `measures` what one takes. `door` finds the model that a request
names, `app` is the application, `life` its beginning and end. Imports the rooms of the server; `server/server.py` and
the command line import it.
"""
