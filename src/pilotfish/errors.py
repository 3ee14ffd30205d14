"""The exception tree: one base, grouped by whose mistake it is and what to do about it.

Owns every exception a caller may see. Each message says what was got, what was expected and what to do. Our own
broken invariants are `AssertionError`s and are not listed here.
"""


class PilotfishError(Exception):
    """Base of every error Pilotfish raises on purpose."""


class InvalidInputError(PilotfishError, ValueError):
    """A value given by the caller cannot be used; nothing was done."""


class SamplingParamsError(InvalidInputError):
    """A sampling option is out of its range or contradicts another."""


class SpeculativeConfigError(InvalidInputError):
    """A key or value of `speculative_config` is unknown or out of range."""


class PromptError(InvalidInputError):
    """A prompt is empty, too long for the context, or not text, messages or token ids."""


class RowsError(InvalidInputError):
    """Rows handed to an executor name a token, parent, sequence or length that does not exist."""


class ModelError(PilotfishError):
    """A model cannot be loaded or used."""


class ModelNotFoundError(ModelError):
    """No directory, file, catalogue name or hub id answers to the name given."""


class UnsupportedModelError(ModelError):
    """The model asks for something the decoder does not cover; the message names it."""


class CorruptModelError(ModelError):
    """A model file is truncated or damaged; the message names the file and, where known, the tensor."""


class TokenizerMismatchError(ModelError):
    """Target and draft model do not share a tokenizer; the message names both and the first difference."""


class CorruptPoolError(PilotfishError):
    """A saved pool of past outputs is damaged, of another version, or belongs to another pool or model."""


class DownloadError(ModelError):
    """A model could not be fetched, or what came does not have the expected checksum."""


class TrainingError(PilotfishError):
    """A training run cannot go on: it was begun with other settings, or what it made does not pass its check."""


class CacheFullError(PilotfishError):
    """The key-value cache has no room for the rows asked for."""


class QueueFullError(PilotfishError):
    """A service has as many requests waiting as it may; nothing was done.

    Attributes:
        waiting: requests that wait now.
        limit: the most that may.
    """

    def __init__(self, waiting: int, limit: int) -> None:
        super().__init__(f"{waiting} requests are waiting: expected fewer than {limit}; try again later")
        self.waiting = waiting
        self.limit = limit


class ServiceClosedError(PilotfishError):
    """A service that is draining or closed takes no more requests."""


class ExecutorUnavailableError(PilotfishError):
    """The executor asked for by name does not work on this machine."""


class DataSetError(PilotfishError):
    """A training data set is missing, damaged, of another model or other settings, or does not fit the disk."""


class RemoteServerError(PilotfishError):
    """A server at an address that the caller gave cannot be reached, refuses, or breaks off.

    Attributes:
        status: the HTTP status it answered with; `None` if it did not come to that.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
