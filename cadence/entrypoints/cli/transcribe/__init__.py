"""`cadence transcribe`: `command` reads flags and drives an engine, `screen` shows words and progress, `writing` makes
files of transcripts. Imported by entrypoints/cli/main."""
