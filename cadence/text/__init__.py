"""Tokenizers, chat templates (sandboxed), incremental detokenisation, stop strings.

`control_codes` tells control tokens from text that looks like them,
`text_frame` and `cut_texts` make prompts of pairs and of texts that are cut, `marian` is for models that translate,
`null_tokenizer` is used where there is none. Imports core, config, gguf and process; `structured`, `engine` and
everything above may import it.
"""
