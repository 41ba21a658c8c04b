"""Pictures, videos and sounds of prompts, on the host: how they come in, and what a model's family makes of them."""
