"""Towers: pictures or sounds in, vectors for a language model out. Each family's file has its model, made of a
decoder of the folder above and a tower; `packed` runs a tower's layers over several pictures at once."""
