"""What several commands use: sampling flags, a model in this process (`open_llm`), an answer streamed into the
terminal, progress as lines, tables of figures. Imports no command."""
