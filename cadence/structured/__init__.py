"""Output that must parse: grammars, compiled once and followed by each request token by token."""
