"""What a speech model's decoder begins with."""

from __future__ import annotations

from collections.abc import Sequence

from cadence.audio.errors import AudioError
from cadence.audio.vocabulary import TASKS, SpeechVocabulary


def start_tokens(vocabulary: SpeechVocabulary, language: str, task: str, timestamps: bool) -> list[int]:
    """The start, the language and the task of models that know several, and whether there are times."""
    if task not in TASKS:
        raise AudioError(f"task must be one of {' and '.join(TASKS)}; it is {task[:40]!r}.", "task")
    tokens = [vocabulary.start]
    if vocabulary.multilingual:
        tokens += [vocabulary.language_token(language), vocabulary.tasks[task]]
    elif task == "translate":
        raise AudioError("This model knows English alone: it does not translate.", "model")
    return tokens if timestamps else [*tokens, vocabulary.no_timestamps]


def context_tokens(vocabulary: SpeechVocabulary, previous: Sequence[int], max_length: int) -> list[int]:
    """The text before this window, as far as half of the decoder's length has room for it; the latest is kept."""
    room = max_length // 2 - 1
    kept = [token for token in previous if token != vocabulary.end_of_text][-room:] if room > 0 else []
    return [vocabulary.previous, *kept] if kept else []
