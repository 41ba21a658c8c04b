"""Plain data that both halves share. Nothing here imports torch."""
