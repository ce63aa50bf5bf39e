"""Errors that a stage may end with, and the exit codes that Airflow maps."""

from __future__ import annotations

from model.config import ConfigError, require

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 64
EXIT_CONTRACT = 65  # bad data or bad config: a retry cannot help
EXIT_RETRY = 75  # temporary trouble: try again

__all__ = [
    "EXIT_CONTRACT",
    "EXIT_FAILED",
    "EXIT_OK",
    "EXIT_RETRY",
    "EXIT_USAGE",
    "ConfigError",
    "ContractError",
    "DataError",
    "ResumeError",
    "RetryError",
    "exit_code",
    "require",
]


class ContractError(Exception):
    """Data breaks a critical rule; the message names rule, table, count and first bad values."""


class DataError(Exception):
    """An input is missing or unreadable; the message names the path and the remedy."""


class ResumeError(Exception):
    """A half-done piece of work cannot be continued; the message says what to remove."""


class RetryError(Exception):
    """A temporary trouble (disk full, lock held, server away); trying again may work."""


def exit_code(error: BaseException) -> int:
    """The process exit code of an error: 65 for config and data, 75 for temporary, else 1."""
    if isinstance(error, (ConfigError, ContractError, DataError, ResumeError)):
        return EXIT_CONTRACT
    if isinstance(error, (RetryError, OSError)):
        return EXIT_RETRY
    return EXIT_FAILED
