"""The page: a playground, embeddings as a picture, a live view of the engine. `static` has its files, served as they
are. Imports core and `engine/metrics`; the server imports it."""
