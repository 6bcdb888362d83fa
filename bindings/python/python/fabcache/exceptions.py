"""Exceptions with pymemcache's names. System failures raise OSError, as there."""


class MemcacheError(Exception):
    """Base class of these exceptions."""


class MemcacheClientError(MemcacheError):
    """The server rejected a request as malformed, or it cannot be sent: a key or number is invalid."""


class MemcacheUnknownCommandError(MemcacheClientError):
    """The server does not know the command."""


class MemcacheIllegalInputError(MemcacheClientError):
    """A key or value that no server takes; nothing was sent."""


class MemcacheServerError(MemcacheError):
    """The server could not run the request: memory is full, or the value too large for it."""


class MemcacheUnknownError(MemcacheError):
    """The server's reply is not part of the protocol."""


class MemcacheUnexpectedCloseError(MemcacheServerError):
    """The server closed the connection. A change may have been made."""
