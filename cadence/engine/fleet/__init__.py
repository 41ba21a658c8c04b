"""Several engines of one front (`dp_client`), or of several fronts (`engine_owner` starts them, `engine_links` reach
them), and which of them gets a request (`router`, without clock or socket). Imports `supervise`; `engine` and
`entrypoints` import it."""
