"""What an object store's error means for a run: whether a retry can help, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from pipeline.run.errors import DataError, RetryError

# A part of the store's message -> what is wrong and the remedy. Anything else may pass by itself.
_FINAL = {
    "s3": (
        (("NO_SUCH_BUCKET", "NoSuchBucket"), "there is no such bucket; check its name and region"),
        (
            (
                "INVALID_ACCESS_KEY_ID",
                "InvalidAccessKeyId",
                "InvalidClientTokenId",
                "UNRECOGNIZED_CLIENT",
            ),
            "the store does not know the access key; check AWS_ACCESS_KEY_ID and AWS_PROFILE",
        ),
        (
            ("SIGNATURE_DOES_NOT_MATCH", "SignatureDoesNotMatch"),
            "the secret key does not fit; check AWS_SECRET_ACCESS_KEY",
        ),
        (
            ("ExpiredToken", "EXPIRED_TOKEN", "INVALID_CLIENT_TOKEN_ID"),
            "the session token has expired; renew AWS_SESSION_TOKEN",
        ),
        (
            ("ACCESS_DENIED", "AccessDenied", "MISSING_AUTHENTICATION_TOKEN", "HTTP status 403"),
            "access is denied; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_PROFILE) "
            "of an account that may list and read it",
        ),
        (
            ("HTTP status 301", "PermanentRedirect"),
            "the bucket is in another region; set AWS_REGION",
        ),
    ),
    "gs": (
        (
            ("UNAUTHENTICATED", "PERMISSION_DENIED", "Permission denied", "[errno 13]"),
            "access is denied; set GOOGLE_APPLICATION_CREDENTIALS to the key file of an account "
            "that may list and read it",
        ),
        (
            ("Could not create a OAuth2", "default credentials", "credentials"),
            "there are no credentials; set GOOGLE_APPLICATION_CREDENTIALS to a key file",
        ),
        (("bucket does not exist", "NOT_FOUND"), "there is no such bucket; check its name"),
    ),
}
_KEPT_TEXT = 200


@contextmanager
def explained(where: object) -> Iterator[None]:
    """Turn a store's error into one that names the place and the remedy.

    `DataError` for what only a person can change, `RetryError` for what may pass: the network,
    a busy store. `where`: the location, of which the text names scheme, bucket and key.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(
            f"{where} is gone since it was listed ({_short(error)}); run land again"
        ) from None
    except (OSError, pa.ArrowException) as error:
        text = _short(error)
        scheme = str(where).partition("://")[0]
        for marks, remedy in _FINAL[scheme]:
            if any(mark in str(error) for mark in marks):
                raise DataError(f"{where} cannot be read: {remedy} ({text})") from None
        raise RetryError(
            f"{where} does not answer: check the network and {_ENDPOINT[scheme]}, or try again "
            f"({text})"
        ) from None


_ENDPOINT = {"s3": "AWS_ENDPOINT_URL", "gs": "STORAGE_EMULATOR_HOST"}


def _short(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:_KEPT_TEXT]
