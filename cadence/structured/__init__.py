"""Output that must parse: grammars, compiled once and followed by each request token by token.

`service` has them compiled in a process that can be killed (`compile_client`, `compile_process`), tenant by tenant, and
keeps them (`cache`). `choose` picks `xgrammar_backend` or `llguidance_backend`, `grammar` is a compiled one,
`vocabulary` its tokens, `canonical` spells forced text as the tokenizer does. Imports core, process and text; `engine`
imports it.
"""
