"""Serialization of values with pymemcache's flags, so that both clients read each other's values."""

import logging
import pickle
import zlib
from functools import partial
from typing import Any, Callable, Optional, Protocol, Tuple

FLAG_BYTES = 0
FLAG_PICKLE = 1 << 0
FLAG_INTEGER = 1 << 1
FLAG_LONG = 1 << 2
FLAG_COMPRESSED = 1 << 3
FLAG_TEXT = 1 << 4

DEFAULT_PICKLE_VERSION = pickle.HIGHEST_PROTOCOL

_log = logging.getLogger(__name__)


class Serde(Protocol):
    """The interface of a client's ``serde``."""

    def serialize(self, key: Any, value: Any) -> Tuple[Any, int]:
        """Return the bytes of a value, and the flags that deserialize needs."""

    def deserialize(self, key: Any, value: bytes, flags: int) -> Any:
        """Return the value that was stored as these bytes with these flags."""


def _serialize(key: Any, value: Any, pickle_version: int) -> Tuple[Any, int]:
    # By the exact type: a subclass is pickled, so that its type is restored.
    if type(value) is bytes:
        return value, FLAG_BYTES
    if type(value) is str:
        return value.encode("utf8"), FLAG_TEXT
    if type(value) is int:
        return "%d" % value, FLAG_INTEGER
    return pickle.dumps(value, pickle_version), FLAG_PICKLE


def get_python_memcache_serializer(
    pickle_version: int = DEFAULT_PICKLE_VERSION,
) -> Callable[[Any, Any], Tuple[Any, int]]:
    """Return a serializer that pickles with this protocol version."""
    return partial(_serialize, pickle_version=pickle_version)


python_memcache_serializer = get_python_memcache_serializer()


def python_memcache_deserializer(key: Any, value: bytes, flags: int) -> Any:
    """Return the unpickled value, or None, as for a miss, if it cannot be unpickled."""
    if flags == FLAG_BYTES:
        return value
    if flags & FLAG_TEXT:
        return value.decode("utf8")
    if flags & (FLAG_INTEGER | FLAG_LONG):
        return int(value)
    if flags & FLAG_PICKLE:
        try:
            return pickle.loads(value)
        except Exception:
            _log.info("cannot unpickle a value", exc_info=True)
            return None
    return value


class PickleSerde:
    """Stores bytes unchanged, text and numbers as text, and pickles everything else. Only read values from programs you trust."""

    def __init__(self, pickle_version: int = DEFAULT_PICKLE_VERSION) -> None:
        self._serialize_func = get_python_memcache_serializer(pickle_version)

    def serialize(self, key: Any, value: Any) -> Tuple[Any, int]:
        return self._serialize_func(key, value)

    def deserialize(self, key: Any, value: bytes, flags: int) -> Any:
        return python_memcache_deserializer(key, value, flags)


pickle_serde = PickleSerde()


class CompressedSerde:
    """Wraps a serde; compresses values longer than ``min_compress_len`` if that does not lengthen them."""

    def __init__(
        self,
        compress: Callable[[bytes], bytes] = zlib.compress,
        decompress: Callable[[bytes], bytes] = zlib.decompress,
        serde: Serde = pickle_serde,
        min_compress_len: int = 400,
    ) -> None:
        self._serde = serde
        self._compress = compress
        self._decompress = decompress
        self._min_compress_len = min_compress_len

    def serialize(self, key: Any, value: Any) -> Tuple[Any, int]:
        value, flags = self._serde.serialize(key, value)
        if len(value) > self._min_compress_len > 0:
            plain = value.encode("ascii") if isinstance(value, str) else value
            compressed = self._compress(plain)
            if len(compressed) <= len(plain):
                return compressed, flags | FLAG_COMPRESSED
        return value, flags

    def deserialize(self, key: Any, value: bytes, flags: int) -> Any:
        if flags & FLAG_COMPRESSED:
            value = self._decompress(value)
        return self._serde.deserialize(key, value, flags)


compressed_serde = CompressedSerde()


class LegacyWrappingSerde:
    """A serde of two functions, either of which may be missing."""

    def __init__(
        self,
        serializer_func: Optional[Callable[[Any, Any], Tuple[Any, int]]],
        deserializer_func: Optional[Callable[[Any, bytes, int], Any]],
    ) -> None:
        self._does_nothing = serializer_func is None and deserializer_func is None
        self.serialize = serializer_func or _as_it_is
        self.deserialize = deserializer_func or _as_it_was


def _as_it_is(key: Any, value: Any) -> Tuple[Any, int]:
    return value, 0


def _as_it_was(key: Any, value: bytes, flags: int) -> Any:
    return value
