"""Speech: recordings in, features for a model's encoder, and a transcript out of its tokens.

`decode` reads files (by PyAV, or `wav` without it) within `limits`, `resample` changes rates, `features` makes log-mel
spectrograms, `activity` finds speech. `vocabulary` and `prompts` are Whisper's special tokens, `windows` moves over a
long recording, `segments`, `quality` and `words` read what was decoded, `transcription` drives it all without an
engine, `formats` writes subtitles. Imports numpy, core and config; `engine` and `entrypoints` import it.
"""
