from __future__ import annotations

import pytest

from pipeline.run.config import SolarisConfig
from pipeline.run.errors import ConfigError
from pipeline.run.store_url import check_store, shown


@pytest.mark.parametrize(
    "text",
    [
        "lmdb",
        "redis://cache.example:6379/3",
        "redis://[::1]:6379",
        "rediss://user@cache.example?ssl_ca_certs=/etc/ca.pem&ssl_cert_reqs=required",
    ],
)
def test_stores_of_a_config(text: str) -> None:
    assert SolarisConfig(store=text).store == text


@pytest.mark.parametrize(
    "text", ["", "sqlite", "http://cache", "redis://", "redis://h:port", "redis://h/name"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match='must be "lmdb", redis://'):
        SolarisConfig(store=text)


def test_a_password_in_a_config_is_refused_and_not_repeated() -> None:
    secret = "rediss://me:s3cret@cache.example/1?ssl_cert_reqs=none"
    with pytest.raises(ConfigError, match="HEADWATER_REDIS_PASSWORD") as refused:
        SolarisConfig(store=secret)
    assert "s3cret" not in str(refused.value)
    check_store(secret, clear_password=True)
    assert shown(secret) == "rediss://cache.example/1"
    with pytest.raises(ConfigError) as broken:
        SolarisConfig(store="redis://me:s3cret@cache.example:port")
    assert "s3cret" not in str(broken.value)


def test_unknown_options_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"options \['socket_timeout'\]"):
        SolarisConfig(store="rediss://h?socket_timeout=1")
    with pytest.raises(ConfigError, match="need rediss://"):
        SolarisConfig(store="redis://h?ssl_ca_certs=/etc/ca.pem")


def test_neighbours_are_not_negative() -> None:
    with pytest.raises(ConfigError, match=r"solaris\.neighbours"):
        SolarisConfig(neighbours=-1)
