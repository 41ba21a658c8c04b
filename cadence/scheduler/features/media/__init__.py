"""Pictures, sounds and vectors in prompts: which of them towers encode before a step, where what comes of them is kept
(`cache`), and how far a step may go into a prompt that has them (`feature`)."""
