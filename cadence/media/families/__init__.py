"""What each family makes of pictures, frames and sounds: see `cadence/media/family.py`."""
