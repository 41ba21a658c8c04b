"""Grammars on the device: masks that come by mail, tokens that must come, and what the host is told of drafts."""
