"""Every error a user can meet, as a small tree. The server maps each branch to one HTTP status."""


class CadenceError(Exception):
    """Base of all errors raised on purpose."""


class InvalidRequestError(CadenceError, ValueError):
    """The request cannot be served as written. `field` names what is wrong, `reason` is a word for programs."""

    def __init__(self, message: str, field: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.field = field
        self.reason = reason


class ContextLengthError(InvalidRequestError):
    """Prompt and output do not fit the model's length together."""

    def __init__(self, max_model_len: int, num_prompt: int, num_output: int) -> None:
        """The sentence that clients of OpenAI and vLLM look for, with numbers they can act on."""
        super().__init__(
            f"This model's maximum context length is {max_model_len} tokens. However, you requested "
            f"{num_prompt + num_output} tokens ({num_prompt} in the messages, {num_output} in the completion). "
            "Please reduce the length of the messages or completion.",
            "prompt" if num_prompt >= num_output else "max_tokens",
            "context_length_exceeded",
        )


class ConfigError(CadenceError, ValueError):
    """An engine option is unknown, malformed or contradicts another. `field` names it."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class ModelFileError(ConfigError):
    """A file of the model describes what cannot be. The message begins with the file."""


class ModelNotFoundError(CadenceError, FileNotFoundError):
    """A model reference leads to nothing that can be loaded."""


class WeightsError(CadenceError):
    """A weights file is missing, truncated, corrupt, or does not fit the model."""


class AdapterError(CadenceError):
    """An adapter cannot be read, or does not fit the model or its limits. The message names the file and the field."""


class TokenizerError(CadenceError):
    """The tokenizer is missing, corrupt, or does not belong to the model."""


class TemplateError(InvalidRequestError):
    """A chat template could not be rendered."""


class ReaderTooSlowError(CadenceError):
    """The client does not read its output fast enough."""


class BusyError(CadenceError):
    """There is more work of this kind than may wait. The same request may succeed a little later."""


class AbortedError(CadenceError):
    """The request was ended by another than its reader: by the engine's owner, or because the engine goes down."""


class EngineDeadError(CadenceError):
    """The engine stopped and can serve nothing more."""


class RanksMissingError(EngineDeadError):
    """Ranks on other machines have not joined; they may later."""


class EngineGivenUpError(EngineDeadError):
    """The owner of an engine starts no other."""
