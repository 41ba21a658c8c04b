"""SentencePiece files of models that carry nothing else: `spiece.model` (T5), `source.spm` and `target.spm` (Marian).

`model_file` reads the files, which are untrusted; `normalizer` does to a text what SentencePiece does before it looks
for pieces; `unigram` and `source_texts` make tokens of it. Imports core and config; `cadence/text` alone imports it.
"""
