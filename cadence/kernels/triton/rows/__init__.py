"""Rows from token to token: gathered, committed, drafted for (`rows`, `drafts`, `suffix`, `kept_states`); tokens drawn
(`draw`, `gumbel`) and masked (`token_mask`); what turns tokens whose positions have axes (`rope`). Imports `common`.
"""
