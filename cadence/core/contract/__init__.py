"""What crosses a boundary between parts: steps, requests, control verbs, and the bytes of all these. Imports core."""
