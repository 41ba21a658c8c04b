"""`cadence run-batch`: the files of a batch, answered by the server's application in this process. Imports the
server."""
