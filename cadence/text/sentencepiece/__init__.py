"""SentencePiece files of models that carry nothing else: `spiece.model` (T5), `source.spm` and `target.spm` (Marian),
`tokenizer.model` (Llama, Mistral, Gemma).

`model_file` reads the files, which are untrusted; `normalizer` does to a text what SentencePiece does before it looks
for pieces; `unigram`, `merged` and `source_texts` make tokens of it. Imports core and config; `cadence/text` alone
imports it.
"""
