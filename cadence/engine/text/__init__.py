"""Prompts in, text out: everything about a request but the tokens that the engine makes.

`input_processor` makes an `EngineRequest`; `output_processor` and `request_text` turn updates into text. `text_tap` is
the short way of plain streams, past their readers. `parallel_sampling` is n > 1; `beam` and `async_beam` are beam
search. Imports core, config, text and process, and nothing else of `engine` but `metrics`; `engine` and `entrypoints`
import it.
"""
