"""A client for memcached servers, with pymemcache's interface.

A fabcached of the same host, reached by its Unix socket, is read from its memory:

    from fabcache import Client
    cache = Client("/run/fabcached.sock")
    cache.set("key", b"value", expire=60)
    cache.get("key")

Clients may be shared by threads, and go on in a process that was forked. For asyncio there is ``fabcache.aio``, for Django
``fabcache.django``.
"""

import os

from fabcache._fabcache import Request, __version__, forked
from fabcache.client import Client, KeepaliveOpts, PooledClient
from fabcache.exceptions import (
    MemcacheClientError,
    MemcacheError,
    MemcacheIllegalInputError,
    MemcacheServerError,
    MemcacheUnexpectedCloseError,
    MemcacheUnknownCommandError,
    MemcacheUnknownError,
)
from fabcache.hash import HashClient, RendezvousHash

__all__ = [
    "Client",
    "HashClient",
    "KeepaliveOpts",
    "MemcacheClientError",
    "MemcacheError",
    "MemcacheIllegalInputError",
    "MemcacheServerError",
    "MemcacheUnexpectedCloseError",
    "MemcacheUnknownCommandError",
    "MemcacheUnknownError",
    "PooledClient",
    "RendezvousHash",
    "Request",
    "__version__",
]

os.register_at_fork(after_in_child=forked)
