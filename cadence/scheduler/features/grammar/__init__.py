"""Grammars beside the scheduler: where each output stands in its own, which tokens may follow, and which must."""
