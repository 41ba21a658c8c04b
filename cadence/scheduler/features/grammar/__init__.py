"""Grammars on the host: where each output stands in its own (`constraint`, `output`), the mail that says which tokens
may follow (`masks`), and tokens that must (`forced`)."""
