"""The HTTP client of `chat --url`, `complete` and `bench serve`. `wire` decodes bytes and has no socket. Imports
`shared`."""
