"""Products of tokens with the matrices of their experts: tokens in tiles by expert (`expert_tiles`), times stacks of
matrices (`expert_stacks`), one launch for all of them. Imports `lowbit` and `common`."""
