"""Clients of one server, with pymemcache's names and results."""

import os
import socket
import ssl
from types import ModuleType
from typing import Any, Callable, Dict, List, Optional, Tuple, Type, Union

from fabcache import serde as _serde
from fabcache._fabcache import BaseClient
from fabcache._text import FABRIC, ServerSpec, TextConnection, behind, raise_errors
from fabcache.exceptions import MemcacheClientError, MemcacheIllegalInputError, MemcacheUnexpectedCloseError, MemcacheUnknownError

Key = Union[str, bytes]
Cas = Union[int, str, bytes]

_DEFAULT_PORT = 11211


def normalize_server_spec(server: ServerSpec) -> ServerSpec:
    """(host, port), or the path of a Unix socket: of such a pair, "host", "host:port", "[host]:port", "unix:PATH" or "/PATH";
    "tcp://" and "unix://" may stand before. "fab://host:port" stays a text."""
    if isinstance(server, tuple):
        return server
    if not isinstance(server, str):
        raise ValueError(f"Unsupported server specification: {server!r}")
    if server.startswith("unix:"):
        return server[len("unix:") :]
    if server.startswith("/"):
        return server
    on_fabric = behind(FABRIC, server)
    if on_fabric is not None:
        pair = normalize_server_spec(on_fabric)
        if isinstance(pair, str):
            raise ValueError(f"{server!r} is not a server address: a Unix socket is not on the fabric")
        return FABRIC + _written(pair)
    by_tcp = behind("tcp://", server)
    server = server if by_tcp is None else by_tcp
    host, port = server, str(_DEFAULT_PORT)
    if ":" in server and not server.endswith("]"):
        host, _, port = server.rpartition(":")
    if host.startswith("["):
        host = host.strip("[]")
    try:
        return host, int(port)
    except ValueError:
        raise ValueError(f"{server!r} is not a server address: {port!r} is not a port") from None


def _address(server: ServerSpec) -> str:
    if isinstance(server, str):
        if not server:
            raise ValueError("a Unix socket has a path")
        if server.startswith(FABRIC):
            return server
        return "unix://" + os.path.abspath(server)
    return "tcp://" + _written(server)


def _written(pair: Tuple[str, int]) -> str:
    try:
        host, port = pair
    except ValueError:
        raise ValueError(f"Unsupported server specification: {pair!r}") from None
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class KeepaliveOpts:
    """Times of TCP's keepalive. Accepted for compatibility, without effect: the next call detects a broken connection
    and reconnects."""

    __slots__ = ("idle", "intvl", "cnt")

    def __init__(self, idle: int = 1, intvl: int = 1, cnt: int = 5) -> None:
        for name, value in (("idle", idle), ("intvl", intvl), ("cnt", cnt)):
            if value < 1:
                raise ValueError(f"The {name} parameter must be greater or equal to 1.")
        self.idle = idle
        self.intvl = intvl
        self.cnt = cnt


def _float(value: bytes) -> float:
    return float(value.replace(b":", b"."))


def _octal(value: bytes) -> int:
    return int(value, 8)


def _flag(value: bytes) -> bool:
    return int(value) != 0


# The statistics that are not integers.
STAT_TYPES: Dict[bytes, Callable[[bytes], Any]] = {
    b"version": bytes,
    b"rusage_user": _float,
    b"rusage_system": _float,
    b"inter": bytes,
    b"growth_factor": float,
    b"stat_key_prefix": bytes,
    b"umask": _octal,
    b"auth_enabled_sasl": lambda value: value == b"yes",
    **dict.fromkeys(
        (
            b"hash_is_expanding",
            b"slab_reassign_running",
            b"detail_enabled",
            b"cas_enabled",
            b"maxconns_fast",
            b"slab_reassign",
            b"slab_automove",
        ),
        _flag,
    ),
}


def _prefix(key_prefix: Union[bytes, str]) -> bytes:
    if isinstance(key_prefix, str):
        key_prefix = key_prefix.encode("ascii")
    if not isinstance(key_prefix, bytes):
        raise TypeError("key_prefix should be bytes.")
    return key_prefix


def _login(username: Optional[str], password: Optional[str]) -> Optional[Tuple[str, str]]:
    if username is None and password is None:
        return None
    if username is None or password is None:
        raise ValueError("give both username and password, or neither")
    return username, password


class Client(BaseClient):
    """A client of one server, which threads may share.

    ``server`` is a pair of host and port, "host:port", or the path of a Unix socket. A fabcached's Unix socket offers its
    memory: then values are read where they lie. ``shared_memory=True`` insists on that, False does without.
    "fab://host:port" is reached over the fabric: ``fabric`` says how values are got, "one-sided", "request", or as is faster
    ("auto"). ``fabric_provider`` and ``fabric_interface`` are libfabric's names of what is to be used; with ``fabric_or_tcp=True``
    TCP serves where there is no fabric.

    ``username`` and ``password`` say who this is where clients authenticate: by text, or with ``protocol="binary"`` by SASL PLAIN.
    ``protocol`` is the socket protocol: "meta", "text", "binary", or "auto" for whichever of the first two the server speaks.

    The other arguments, and what the calls take, return and raise, are pymemcache's. Connections are made when they are
    needed, and again after a failure.
    """

    def __init__(
        self,
        server: ServerSpec,
        serde: Optional[_serde.Serde] = None,
        serializer: Optional[Callable[[Any, Any], Tuple[Any, int]]] = None,
        deserializer: Optional[Callable[[Any, bytes, int], Any]] = None,
        connect_timeout: Optional[float] = None,
        timeout: Optional[float] = None,
        no_delay: bool = False,
        ignore_exc: bool = False,
        socket_module: ModuleType = socket,
        socket_keepalive: Optional[KeepaliveOpts] = None,
        key_prefix: Union[bytes, str] = b"",
        default_noreply: bool = True,
        allow_unicode_keys: bool = False,
        encoding: str = "ascii",
        tls_context: Optional[ssl.SSLContext] = None,
        *,
        shared_memory: Optional[bool] = None,
        fabric: str = "auto",
        fabric_provider: Optional[str] = None,
        fabric_interface: Optional[str] = None,
        fabric_or_tcp: bool = False,
        protocol: str = "auto",
        username: Optional[str] = None,
        password: Optional[str] = None,
    ) -> None:
        if socket_module is not socket:
            raise ValueError("socket_module: connections are not Python sockets, so no module can replace them")
        if tls_context is not None:
            raise ValueError("tls_context: this client has no TLS")
        if socket_keepalive is not None and not isinstance(socket_keepalive, KeepaliveOpts):
            raise ValueError(f"socket_keepalive must be a KeepaliveOpts, not {socket_keepalive!r}")
        self.server = normalize_server_spec(server)
        self.connect_timeout = connect_timeout
        self.timeout = timeout
        self.no_delay = no_delay
        self.socket_module = socket_module
        self.socket_keepalive = socket_keepalive
        self.tls_context = tls_context
        self._speaks_binary = protocol == "binary"
        self._login = _login(username, password)
        self._configure(
            _address(self.server),
            serde or _serde.LegacyWrappingSerde(serializer, deserializer),
            connect_timeout,
            timeout,
            bool(ignore_exc),
            _prefix(key_prefix),
            bool(default_noreply),
            bool(allow_unicode_keys),
            encoding,
            shared_memory,
            (fabric, fabric_provider, fabric_interface, bool(fabric_or_tcp)),
            protocol,
            self._login,
        )

    get_multi = BaseClient.get_many
    set_multi = BaseClient.set_many
    delete_multi = BaseClient.delete_many
    disconnect_all = BaseClient.close

    def __getitem__(self, key: Key) -> Any:
        value = self.get(key)
        if value is None:
            raise KeyError
        return value

    def __setitem__(self, key: Key, value: Any) -> None:
        self.set(key, value, noreply=True)

    def __delitem__(self, key: Key) -> None:
        self.delete(key, noreply=True)

    # ---- the server ----

    def stats(self, *args: Union[str, bytes]) -> Dict[bytes, Any]:
        """Return the server's statistics, or a topic's; numbers as numbers."""
        topics = [self.check_key(topic, b"") for topic in args]
        try:
            found: Dict[bytes, Any] = self._told(topics)
        except Exception:
            if self.ignore_exc:
                return {}
            raise
        for name, value in found.items():
            try:
                found[name] = STAT_TYPES.get(name, int)(value)
            except Exception:
                pass
        return found

    def version(self) -> bytes:
        """Return the server's version."""
        if self._speaks_binary:
            return self._version()
        line = self._ask(b"version", b"version")
        before, _, version = line.partition(b" ")
        if before != b"VERSION":
            raise MemcacheUnknownError(f"Received unexpected response: {line!r}")
        return version

    def flush_all(self, delay: int = 0, noreply: Optional[bool] = None) -> bool:
        """Flush everything, after this many seconds."""
        command = b"flush_all " + _integer(delay, "delay")
        if self._speaks_binary:
            self._flush(delay)
            return True
        return self._ask(command, b"flush_all", noreply) == b"OK"

    def cache_memlimit(self, memlimit: int) -> bool:
        """Set the server's memory limit in megabytes."""
        self._ask(b"cache_memlimit " + _integer(memlimit, "memlimit"), b"cache_memlimit", False)
        return True

    def raw_command(self, command: Union[str, bytes], end_tokens: Union[str, bytes] = "\r\n") -> bytes:
        """Send any command of the text protocol, and return the reply up to the given end."""
        encoding = "utf8" if self.allow_unicode_keys else "ascii"
        command = command.encode(encoding) if isinstance(command, str) else command
        end = end_tokens.encode(encoding) if isinstance(end_tokens, str) else end_tokens
        with self._text() as connection:
            connection.send(command + b"\r\n")
            answer = connection.until(end)
        raise_errors(answer, command)
        return answer

    def shutdown(self, graceful: bool = False) -> None:
        """Stop the server, if it allows clients to."""
        try:
            self._ask(b"shutdown graceful" if graceful else b"shutdown", b"shutdown", False)
        except (MemcacheUnexpectedCloseError, ConnectionResetError):
            pass

    def quit(self) -> None:
        """Close the connections, as close does."""
        self.close()

    def _told(self, topics: List[bytes]) -> Dict[bytes, Any]:
        if self._speaks_binary:
            return dict(self._stats(b" ".join(topics).decode("latin-1")))
        with self._text() as connection:
            return dict(connection.stats(topics))

    def _text(self) -> TextConnection:
        if self._speaks_binary and self._login is not None:
            raise MemcacheClientError("this call needs the text protocol, which a server with SASL rejects")
        server = self.server
        if isinstance(server, str) and server.startswith(FABRIC):
            # Both use the same port.
            server = normalize_server_spec(server[len(FABRIC) :])
        return TextConnection(server, self.connect_timeout, self.timeout, self._login)

    def _ask(self, command: bytes, name: bytes, noreply: Optional[bool] = None) -> bytes:
        noreply = self.default_noreply if noreply is None else noreply
        with self._text() as connection:
            try:
                return connection.ask(command, name)
            except Exception:
                if noreply:
                    return b"OK"
                raise


def _integer(value: int, name: str) -> bytes:
    if not isinstance(value, int):
        raise MemcacheIllegalInputError(f"{name} must be integer, got bad value: {value!r}")
    return b"%d" % value


class PooledClient(Client):
    """pymemcache's client for threads. Every client here has a pool, so its pool limits have no effect."""

    client_class: Type[Client] = Client

    def __init__(
        self,
        server: ServerSpec,
        serde: Optional[_serde.Serde] = None,
        serializer: Optional[Callable[[Any, Any], Tuple[Any, int]]] = None,
        deserializer: Optional[Callable[[Any, bytes, int], Any]] = None,
        connect_timeout: Optional[float] = None,
        timeout: Optional[float] = None,
        no_delay: bool = False,
        ignore_exc: bool = False,
        socket_module: ModuleType = socket,
        socket_keepalive: Optional[KeepaliveOpts] = None,
        key_prefix: Union[bytes, str] = b"",
        max_pool_size: Optional[int] = None,
        pool_idle_timeout: float = 0,
        lock_generator: Optional[Callable[[], Any]] = None,
        default_noreply: bool = True,
        allow_unicode_keys: bool = False,
        encoding: str = "ascii",
        tls_context: Optional[ssl.SSLContext] = None,
        *,
        shared_memory: Optional[bool] = None,
        fabric: str = "auto",
        fabric_provider: Optional[str] = None,
        fabric_interface: Optional[str] = None,
        fabric_or_tcp: bool = False,
        protocol: str = "auto",
        username: Optional[str] = None,
        password: Optional[str] = None,
    ) -> None:
        if max_pool_size is not None and (not isinstance(max_pool_size, int) or max_pool_size < 0):
            raise ValueError('"max_size" must be a positive integer')
        super().__init__(
            server,
            serde,
            serializer,
            deserializer,
            connect_timeout,
            timeout,
            no_delay,
            ignore_exc,
            socket_module,
            socket_keepalive,
            key_prefix,
            default_noreply,
            allow_unicode_keys,
            encoding,
            tls_context,
            shared_memory=shared_memory,
            fabric=fabric,
            fabric_provider=fabric_provider,
            fabric_interface=fabric_interface,
            fabric_or_tcp=fabric_or_tcp,
            protocol=protocol,
            username=username,
            password=password,
        )

    def check_key(self, key: Key, key_prefix: Optional[bytes] = None) -> bytes:
        """Return the key with the client's prefix, as sent to the server."""
        return super().check_key(key, self.key_prefix if key_prefix is None else key_prefix)
