"""The shapes of requests for values in place of text, and of their answers: embeddings, classes, scores, rankings.
Imports `protocol` and `http`; only `routes` imports it."""
