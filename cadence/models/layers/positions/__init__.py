"""How layers know where a token stands: rotations and slopes. Imports `models/interface`; layers and models import
it.
"""
