"""Where clients connect: addresses (`listen`), TLS (`tls`), a connection and its protocol (`connection`), and all of
them together (`connections`). Imports `http`; the server's processes import it."""
