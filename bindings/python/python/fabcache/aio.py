"""The client for asyncio: the calls of ``fabcache.Client``, to be awaited.

    from fabcache.aio import Client
    cache = Client("/run/fabcached.sock")
    await cache.set("key", b"value")
    await cache.get("key")

Gets and sets of all tasks share one connection; a get through shared memory is over before it is awaited. Other calls run in the
loop's executor. A task that is cancelled leaves what it asked for to itself: it is done, or not.
"""

import asyncio
import weakref
from functools import partial
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple, TypeVar, Union

from fabcache import client as _client
from fabcache._fabcache import Request, Wakeups
from fabcache._text import ServerSpec
from fabcache.client import Cas, Key

__all__ = ["Client"]

T = TypeVar("T")

# The default that marks an absent key.
_MISSING = object()


class _Waiting:
    """The requests that one event loop's tasks await."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._wakeups = Wakeups()
        self._awaited: Dict[int, Tuple[Request, "asyncio.Future[None]"]] = {}
        self._next = 0
        loop.add_reader(self._wakeups.fileno(), self._look)

    async def until_over(self, request: Request) -> None:
        """Waits until the request completes."""
        number = self._next
        self._next += 1
        future = asyncio.get_running_loop().create_future()
        self._awaited[number] = (request, future)
        try:
            if not self._wakeups.watch(request, number):
                await future
        finally:
            del self._awaited[number]

    def _look(self) -> None:
        for number in self._wakeups.take():
            request, future = self._awaited.get(number, (None, None))
            if request is None or future is None or future.done():
                continue
            try:
                if self._wakeups.watch(request, number):
                    future.set_result(None)
            except Exception as error:
                future.set_exception(error)


_waiting: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Waiting]" = weakref.WeakKeyDictionary()


async def _awaited(request: Request) -> Any:
    """Returns a request's result."""
    if not request.test():
        loop = asyncio.get_running_loop()
        waiting = _waiting.get(loop)
        if waiting is None:
            waiting = _waiting[loop] = _Waiting(loop)
        await waiting.until_over(request)
    return request.wait()


class Client:
    """As ``fabcache.Client``, with the same arguments, and calls to be awaited. A server's refusals always raise. It may be used
    by any event loops, one after the other or at once."""

    def __init__(self, server: ServerSpec, **options: Any) -> None:
        self._client = _client.Client(server, **{**options, "default_noreply": False})
        self._is_connected = False

    @property
    def client(self) -> _client.Client:
        """The client whose calls wait."""
        return self._client

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _apart(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(None, call)

    async def _asked(self, ask: Callable[[], T]) -> T:
        """Starts a request. Connecting takes a while, so it runs outside the event loop."""
        return ask() if self._is_connected else await self._apart(ask)

    async def _told(self, request: Request) -> Any:
        try:
            result = await _awaited(request)
        except OSError:
            self._is_connected = False
            raise
        self._is_connected = True
        return result

    async def _read(self, ask: Callable[[], Request], missing: Any) -> Any:
        # An invalid key always raises.
        request = await self._asked(ask)
        try:
            return await self._told(request)
        except Exception:
            if self._client.ignore_exc:
                return missing
            raise

    # ---- reading ----

    async def get(self, key: Key, default: Any = None) -> Any:
        """Return the value of a key, or default if the key is absent."""
        return await self._read(partial(self._client.iget, key, default), default)

    async def gets(self, key: Key, default: Any = None, cas_default: Any = None) -> Tuple[Any, Any]:
        """Return a key's value and its version for cas, or the defaults if the key is absent."""
        ask = partial(self._client.igets, key, default, cas_default)
        found: Tuple[Any, Any] = await self._read(ask, (default, cas_default))
        return found

    async def get_many(self, keys: Iterable[Key]) -> Dict[Key, Any]:
        """Return a dict of the values of the present keys."""
        return await self._read_many(self._client.iget, _MISSING, list(keys))

    async def gets_many(self, keys: Iterable[Key]) -> Dict[Key, Tuple[Any, Any]]:
        """Return a dict of the present keys, each with its value and its version for cas."""
        found = await self._read_many(self._client.igets, _MISSING, list(keys))
        return {key: value for key, value in found.items() if value[0] is not _MISSING}

    async def _read_many(
        self, ask: Callable[[Key, Any], Request], missing: Any, keys: List[Key]
    ) -> Dict[Key, Any]:
        requests = await self._asked(lambda: [ask(key, missing) for key in keys])
        try:
            values = [await self._told(request) for request in requests]
        except Exception:
            if self._client.ignore_exc:
                return {}
            raise
        return {key: value for key, value in zip(keys, values) if value is not missing}

    async def gat(self, key: Key, expire: int = 0, default: Any = None) -> Any:
        """Like get; also set the key's expiry."""
        return await self._apart(partial(self._client.gat, key, expire, default))

    async def gats(
        self, key: Key, expire: int = 0, default: Any = None, cas_default: Any = None
    ) -> Tuple[Any, Any]:
        """Like gets; also set the key's expiry."""
        return await self._apart(partial(self._client.gats, key, expire, default, cas_default))

    # ---- storing ----

    async def set(self, key: Key, value: Any, expire: int = 0, flags: Optional[int] = None) -> bool:
        """Store a value."""
        stored: bool = await self._told(
            await self._asked(partial(self._client.iset, key, value, expire, flags))
        )
        return stored

    async def set_many(
        self, values: Dict[Key, Any], expire: int = 0, flags: Optional[int] = None
    ) -> List[Key]:
        """Store many values; return the keys that were not stored."""
        iset = self._client.iset
        asked = await self._asked(lambda: [iset(key, value, expire, flags) for key, value in values.items()])
        for request in asked:
            await self._told(request)
        return []

    async def add(self, key: Key, value: Any, expire: int = 0, flags: Optional[int] = None) -> bool:
        """Store a value if the key is absent; return whether it was stored."""
        return await self._apart(partial(self._client.add, key, value, expire, flags=flags))

    async def replace(self, key: Key, value: Any, expire: int = 0, flags: Optional[int] = None) -> bool:
        """Store a value if the key exists; return whether it was stored."""
        return await self._apart(partial(self._client.replace, key, value, expire, flags=flags))

    async def append(self, key: Key, value: Any, expire: int = 0, flags: Optional[int] = None) -> bool:
        """Append bytes to an existing value; return whether it was stored."""
        return await self._apart(partial(self._client.append, key, value, expire, flags=flags))

    async def prepend(self, key: Key, value: Any, expire: int = 0, flags: Optional[int] = None) -> bool:
        """Prepend bytes to an existing value; return whether it was stored."""
        return await self._apart(partial(self._client.prepend, key, value, expire, flags=flags))

    async def cas(
        self, key: Key, value: Any, cas: Cas, expire: int = 0, flags: Optional[int] = None
    ) -> Optional[bool]:
        """Store a value if it is unchanged since gets: True; False if it was changed, None if the key is absent."""
        return await self._apart(partial(self._client.cas, key, value, cas, expire, flags=flags))

    # ---- changing ----

    async def delete(self, key: Key) -> bool:
        """Remove a key; return whether it existed."""
        return await self._apart(partial(self._client.delete, key))

    async def delete_many(self, keys: Iterable[Key]) -> bool:
        """Remove many keys."""
        return await self._apart(partial(self._client.delete_many, keys))

    async def incr(self, key: Key, value: int) -> Optional[int]:
        """Add to a number; return the new one, or None if the key is absent."""
        return await self._apart(partial(self._client.incr, key, value))

    async def decr(self, key: Key, value: int) -> Optional[int]:
        """Subtract from a number, which does not go below 0; return the new one, or None if the key is absent."""
        return await self._apart(partial(self._client.decr, key, value))

    async def touch(self, key: Key, expire: int = 0) -> bool:
        """Set a key's expiry; return whether the key exists."""
        return await self._apart(partial(self._client.touch, key, expire))

    # ---- the server ----

    async def stats(self, *args: Union[str, bytes]) -> Dict[bytes, Any]:
        """Return the server's statistics, or those of a topic."""
        return await self._apart(partial(self._client.stats, *args))

    async def version(self) -> bytes:
        """Return the server's version."""
        return await self._apart(self._client.version)

    async def flush_all(self, delay: int = 0) -> bool:
        """Flush everything, after this many seconds."""
        return await self._apart(partial(self._client.flush_all, delay))

    async def close(self) -> None:
        """Close the connections. The next call reconnects."""
        self._is_connected = False
        await self._apart(self._client.close)
