"""The part of the package that is Rust."""

from typing import Any, Dict, Generator, Iterable, List, Mapping, Optional, Tuple, Union, final

from typing_extensions import Buffer, disjoint_base

from fabcache.serde import Serde

_Key = Union[str, bytes]

__all__ = [
    "BaseClient",
    "Request",
    "Value",
    "Wakeups",
    "__version__",
    "forked",
    "murmur3_32",
    "rendezvous_score",
]

__version__: str

def forked() -> None:
    """Tell of a fork, in the child."""

def murmur3_32(data: str, seed: int = 0) -> int:
    """MurmurHash3 for 32 bits of a text's characters, of each the lowest eight bits."""

def rendezvous_score(node: str, key: str, seed: int) -> int:
    """The hash of a server's name, a hyphen and a key."""

@disjoint_base
class BaseClient:
    """What Client does in Rust. It may be used by many threads at once."""

    serde: Serde
    key_prefix: bytes
    ignore_exc: bool
    default_noreply: bool
    allow_unicode_keys: bool
    encoding: str

    def __new__(cls, *_args: Any, **_kwargs: Any) -> "BaseClient": ...
    def _configure(
        self,
        address: str,
        serde: Serde,
        connect_timeout: Optional[float],
        timeout: Optional[float],
        ignore_exc: bool,
        key_prefix: bytes,
        default_noreply: bool,
        allow_unicode_keys: bool,
        encoding: str,
        shared_memory: Optional[bool],
        fabric: Tuple[str, Optional[str], Optional[str], bool],
        protocol: str,
        login: Optional[Tuple[str, str]],
    ) -> None: ...
    def _version(self) -> bytes: ...
    def _stats(self, topic: str) -> Dict[bytes, bytes]: ...
    def _flush(self, delay: int) -> None: ...
    def close(self) -> None:
        """Close the connections to the server. The next call that needs one opens it again."""

    def transport(self) -> Optional[str]:
        """How the server is reached: "shared memory", "channel" (shared memory without reads of it), "unix", "fabric" or "tcp"; None before the first call."""

    def transport_reason(self) -> Optional[str]:
        """Why the server is not reached by shared memory or the fabric although that was asked for, or its memory is not read; None if it is, or was not asked for."""

    def check_key(self, key: _Key, key_prefix: bytes) -> bytes:
        """The key with a prefix, as the server gets it."""

    def get(self, key: _Key, default: Any = None) -> Any:
        """The value of a key, or default if there is none."""

    def gets(self, key: _Key, default: Any = None, cas_default: Any = None) -> Tuple[Any, Any]:
        """The value of a key and its version for cas; or the defaults if there is none."""

    def gat(self, key: _Key, expire: int = 0, default: Any = None) -> Any:
        """The value of a key, or default if there is none; from now on it expires as told."""

    def gats(
        self, key: _Key, expire: int = 0, default: Any = None, cas_default: Any = None
    ) -> Tuple[Any, Any]:
        """As gat, with the version for cas."""

    def get_view(self, key: _Key, default: Any = None) -> Any:
        """The bytes of a value as a read-only memoryview, which are copied once less; or default if there is none."""

    def get_many(self, keys: Iterable[_Key]) -> Dict[_Key, Any]:
        """A dict of the values of those of the keys that there are."""

    def gets_many(self, keys: Iterable[_Key]) -> Dict[_Key, Tuple[Any, Any]]:
        """A dict of the values of those of the keys that there are, each with its version for cas."""

    def set(
        self,
        key: _Key,
        value: Any,
        expire: int = 0,
        noreply: Optional[bool] = None,
        flags: Optional[int] = None,
    ) -> Optional[bool]:
        """Store a value. With noreply what the server refuses is not told."""

    def add(
        self,
        key: _Key,
        value: Any,
        expire: int = 0,
        noreply: Optional[bool] = None,
        flags: Optional[int] = None,
    ) -> bool:
        """Store a value if there is none; whether that was done."""

    def replace(
        self,
        key: _Key,
        value: Any,
        expire: int = 0,
        noreply: Optional[bool] = None,
        flags: Optional[int] = None,
    ) -> bool:
        """Store a value if there is one; whether that was done."""

    def append(
        self,
        key: _Key,
        value: Any,
        expire: int = 0,
        noreply: Optional[bool] = None,
        flags: Optional[int] = None,
    ) -> bool:
        """Add bytes behind a value, if there is one; whether that was done."""

    def prepend(
        self,
        key: _Key,
        value: Any,
        expire: int = 0,
        noreply: Optional[bool] = None,
        flags: Optional[int] = None,
    ) -> bool:
        """Add bytes before a value, if there is one; whether that was done."""

    def cas(
        self,
        key: _Key,
        value: Any,
        cas: Union[int, str, bytes],
        expire: int = 0,
        noreply: Optional[bool] = False,
        flags: Optional[int] = None,
    ) -> Optional[bool]:
        """Store a value if nobody has changed it since gets: True, False if somebody has, None if there is none any more."""

    def set_many(
        self,
        values: Mapping[Any, Any],
        expire: int = 0,
        noreply: Optional[bool] = None,
        flags: Optional[int] = None,
    ) -> List[_Key]:
        """Store many values; a list of the keys that were not stored."""

    def delete(self, key: _Key, noreply: Optional[bool] = None) -> bool:
        """Remove a key; whether it was there."""

    def delete_many(self, keys: Iterable[_Key], noreply: Optional[bool] = None) -> bool:
        """Remove many keys."""

    def incr(self, key: _Key, value: int, noreply: Optional[bool] = False) -> Optional[int]:
        """Add to a number; the new one, or None if there is none."""

    def decr(self, key: _Key, value: int, noreply: Optional[bool] = False) -> Optional[int]:
        """Subtract from a number, which does not go below 0; the new one, or None if there is none."""

    def touch(self, key: _Key, expire: int = 0, noreply: Optional[bool] = None) -> bool:
        """Let a key expire as told from now on; whether it is there."""

    def iget(self, key: _Key, default: Any = None) -> Request:
        """Ask for a value; returns a Request, whose wait() returns what get() would."""

    def bget(self, key: _Key, default: Any = None) -> Request:
        """As iget: what Python is given never changes, so the key may be used again at once in either."""

    def igets(self, key: _Key, default: Any = None, cas_default: Any = None) -> Request:
        """Ask for a value; returns a Request, whose wait() returns what gets() would."""

    def iset(self, key: _Key, value: Any, expire: int = 0, flags: Optional[int] = None) -> Request:
        """Store a value without waiting for that; returns a Request, whose wait() returns True or raises."""

    def bset(self, key: _Key, value: Any, expire: int = 0, flags: Optional[int] = None) -> Request:
        """As iset, but returns once the value was sent, or copied."""

@final
class Request:
    """An operation that was asked for, and that nobody need wait for. One that is dropped is done all the same."""

    @property
    def key(self) -> _Key: ...
    def test(self) -> bool:
        """Whether the operation is over; makes progress with it."""

    def wait(self) -> Any:
        """Wait until the operation is over, and return what it came to. Raises what the blocking call would."""

    def __await__(self) -> Generator[Any, None, Any]: ...

@final
class Value(Buffer):
    """The bytes of a value, lent as a read-only buffer."""

    def __len__(self) -> int: ...

@final
class Wakeups:
    """Tells one event loop which of its requests are over."""

    def __new__(cls) -> "Wakeups": ...
    def fileno(self) -> int:
        """A descriptor that can be read when something is to be taken."""

    def watch(self, request: Request, number: int) -> bool:
        """Make progress; whether the request is over. If not, its number is told when it may be."""

    def take(self) -> List[int]:
        """The numbers of requests that may be over."""
