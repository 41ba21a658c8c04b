"""A chat from its messages to the events of its answer, told apart into reasoning, text and tool calls.

`engine` runs a chat, `choice` and `answer_parser` read what the model writes, `formats` and `format_detection` choose
how, `constraint` says what the answer must be. Imports `http`, `chat/tools`, `engine/text` and `text`; `protocol`,
`responses` and `routes` import it.
"""
