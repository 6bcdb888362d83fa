"""What goes wrong, by pymemcache's names. Failures of the system are OSError, as there."""


class MemcacheError(Exception):
    """Any of these."""


class MemcacheClientError(MemcacheError):
    """The server did not understand a request, or it cannot be sent: a key or a number is none."""


class MemcacheUnknownCommandError(MemcacheClientError):
    """The server does not know the command."""


class MemcacheIllegalInputError(MemcacheClientError):
    """A key or value that no server takes; nothing was sent."""


class MemcacheServerError(MemcacheError):
    """The server could not do what was asked: memory is full, or the value too large for it."""


class MemcacheUnknownError(MemcacheError):
    """The server answered what the protocol does not know."""


class MemcacheUnexpectedCloseError(MemcacheServerError):
    """The server closed the connection. Whether a change was made is not known."""
