"""How values become bytes, and are made of them again: with pymemcache's flags, so that either reads what the other stored."""

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
    """What a client takes as its ``serde``."""

    def serialize(self, key: Any, value: Any) -> Tuple[Any, int]:
        """The bytes of a value, and flags by which deserialize knows what to do."""

    def deserialize(self, key: Any, value: bytes, flags: int) -> Any:
        """The value that was stored as these bytes with these flags."""


def _serialize(key: Any, value: Any, pickle_version: int) -> Tuple[Any, int]:
    # By the exact type: a subclass is pickled, to come back as what it was.
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
    """A serializer that pickles with this version of the protocol."""
    return partial(_serialize, pickle_version=pickle_version)


python_memcache_serializer = get_python_memcache_serializer()


def python_memcache_deserializer(key: Any, value: bytes, flags: int) -> Any:
    """The value of what such a serializer made. None if it cannot be unpickled, as a miss would be."""
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
            _log.info("a value cannot be unpickled", exc_info=True)
            return None
    return value


class PickleSerde:
    """Bytes as they are, text and numbers as text, all else pickled. Read only what programs you trust have stored."""

    def __init__(self, pickle_version: int = DEFAULT_PICKLE_VERSION) -> None:
        self._serialize_func = get_python_memcache_serializer(pickle_version)

    def serialize(self, key: Any, value: Any) -> Tuple[Any, int]:
        return self._serialize_func(key, value)

    def deserialize(self, key: Any, value: bytes, flags: int) -> Any:
        return python_memcache_deserializer(key, value, flags)


pickle_serde = PickleSerde()


class CompressedSerde:
    """Another serde, with what is longer than ``min_compress_len`` compressed if that makes it no longer."""

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
    """A serde of two functions, of which either may be missing."""

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
