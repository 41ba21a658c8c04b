"""Training of an EAGLE-3 head for a model, on texts that the model itself writes. docs/how_to_train_a_head.md"""
