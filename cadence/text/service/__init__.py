"""Tokenising and rendering for an event loop: short texts at once, long ones in a process of their own (`text_process`,
`text_client`), so that no request holds up another; `fill_middle` arranges prompts with a suffix. Imports `text` and
`process`; engines' fronts and the server import it."""
