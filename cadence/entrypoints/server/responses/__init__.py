"""What /v1/responses keeps between requests: finished responses (`store`), running ones (`manager`, `background`) and
their events (`event_log`), and the view of a process that is not the one that keeps them (`client`). Imports
`protocol`, `chat` and `http`; `routes` and the server import it."""
