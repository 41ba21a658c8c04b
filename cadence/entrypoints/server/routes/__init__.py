"""One file per group of endpoints, and the `state` that they share. Imports all other folders of the server and
`webui`; only the server and the shell import it."""
