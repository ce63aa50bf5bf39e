"""Where a Solaris store lies, as a config says: "lmdb", or the URL of a Redis server."""

from __future__ import annotations

from typing import Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

from pipeline.run.errors import ConfigError

EMBEDDED: Final = "lmdb"
PASSWORD_VARIABLE: Final = "HEADWATER_REDIS_PASSWORD"
# what may follow the ? of rediss://; redis-py's own names
TLS_OPTIONS: Final = (
    "ssl_ca_certs",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_cert_reqs",
    "ssl_check_hostname",
)


def check_store(text: str, *, clear_password: bool) -> None:
    """`ConfigError` unless `text` is "lmdb" or a redis:// or rediss:// URL.

    A password in clear is refused where it would be kept (a run's config); the variable
    HEADWATER_REDIS_PASSWORD gives it instead. No message repeats one.
    """
    if text == EMBEDDED:
        return
    url = _split(text)
    if url.password and not clear_password:
        raise ConfigError(
            f"solaris.store {shown(text)} has a password, which run.json would keep in clear; "
            f"leave it out and set the environment variable {PASSWORD_VARIABLE}"
        )
    options = [name for name, _ in parse_qsl(url.query, keep_blank_values=True)]
    allowed = TLS_OPTIONS if url.scheme == "rediss" else ()
    unknown = sorted(set(options) - set(allowed))
    if unknown:
        raise ConfigError(
            f"solaris.store {shown(text)} has the options {unknown}; {url.scheme}:// takes "
            f"{list(allowed) or 'none (TLS ones need rediss://)'}"
        )


def shown(text: str) -> str:
    """The same without user, password and options, for messages."""
    if text == EMBEDDED:
        return text
    url = urlsplit(text)
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}"


def _split(text: str) -> SplitResult:
    wanted = 'must be "lmdb", redis://host:port/db or rediss://host:port/db'
    try:
        url = urlsplit(text)
        right = url.scheme in ("redis", "rediss") and bool(url.hostname)
        right &= url.port != 0 and (url.path in ("", "/") or url.path[1:].isdigit())
    except ValueError:  # a port that is no number, a broken bracket
        right = False
    if not right:
        hidden = "a URL with a password" if "@" in text else repr(text)
        raise ConfigError(f"solaris.store {wanted}, got {hidden}; fix it")
    return url
