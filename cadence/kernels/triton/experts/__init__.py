"""Products of tokens with the matrices of their experts, one launch for all of them. Imports `lowbit` and `common`."""
