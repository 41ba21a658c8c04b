"""Every error a user can meet, as a small tree. The server maps each branch to one HTTP status."""


class CadenceError(Exception):
    """Base of all errors raised on purpose."""


class InvalidRequestError(CadenceError, ValueError):
    """The request cannot be served as written. `field` names what is wrong."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class ConfigError(CadenceError, ValueError):
    """An engine option is unknown, malformed or contradicts another. `field` names it."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class ModelNotFoundError(CadenceError, FileNotFoundError):
    """A model reference leads to nothing that can be loaded."""


class WeightsError(CadenceError):
    """A weights file is missing, truncated, corrupt, or does not fit the model."""


class TokenizerError(CadenceError):
    """The tokenizer is missing, corrupt, or does not belong to the model."""


class TemplateError(InvalidRequestError):
    """A chat template could not be rendered."""


class ReaderTooSlowError(CadenceError):
    """Whoever asked does not take what was made for them."""


class BusyError(CadenceError):
    """There is more work of this kind than may wait. The same request may succeed a little later."""


class EngineDeadError(CadenceError):
    """The engine stopped and can serve nothing more."""
