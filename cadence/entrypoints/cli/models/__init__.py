"""`cadence models`: what can be run (`listing`), and what a model would become (`outlook`, of its configuration and the
headers of its files, `stored`). Neither torch nor transformers is imported."""
