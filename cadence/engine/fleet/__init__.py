"""Several engines of one front, or of several fronts, and which of them gets a request. Imports `supervise`."""
