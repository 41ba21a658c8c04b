"""Requests that ask where the words of a text lie in what an encoder has read. Imports `core` and `scheduler`;
`engine/build.py` imports it."""
