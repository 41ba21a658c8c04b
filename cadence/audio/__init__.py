"""Speech: recordings in, features for a model's encoder, and a transcript out of its tokens.

`decode` reads files (`wav` itself, others by the `library` PyAV) within `limits`, `resample` changes rates, `features`
makes log-mel spectrograms, `activity` finds speech. `vocabulary` and `prompts` are Whisper's special tokens, `windows`
moves over a long recording, `segments` and `quality` read what was decoded, `alignment` and `words` find when words
were said. `transcription` drives it all without an engine: its `queries` say what to ask one. Imports numpy, core and
config; `engine` and `entrypoints` import it.
"""
