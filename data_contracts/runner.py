"""Runs a suite with Great Expectations on the profile and on a sample, and writes Data Docs."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from data_contracts.rules import Expectation, Level

# Great Expectations' own objects: its annotations do not export the names that one needs.
Context = Any
Source = Any
LEVELS: tuple[Level, ...] = ("profile", "sample")
FIRST_BAD = 3
UNUSED = ("boto3", "botocore", "pyspark", "sqlalchemy", "google.cloud", "azure")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What one expectation found; `observed` are the first values that break it."""

    expectation: str
    on: str
    column: str
    severity: str
    reason: str
    success: bool
    observed: tuple[str, ...]

    @property
    def line(self) -> str:
        """One line for people."""
        what = f"{self.on} {self.column or 'table'}: {self.expectation}"
        values = f", first {', '.join(self.observed)}" if self.observed else ""
        return f"{what}{values} ({self.reason})"


def validate(
    name: str,
    suite: Sequence[Expectation],
    frames: Mapping[Level, pl.DataFrame],
    *,
    docs: Path | None = None,
    first_bad: Mapping[str, Sequence[str]] | None = None,
) -> list[Verdict]:
    """The verdicts of `suite` in its order; Data Docs go to the folder `docs`, anew each time.

    `first_bad` holds, per profile column, row values that explain a count above 0.
    """
    with _quiet():
        context = _context(docs)
        source = context.data_sources.add_pandas(name)
        found: dict[int, Any] = {}
        for level in LEVELS:
            places = [p for p, e in enumerate(suite) if e.on == level]
            found |= _check(context, source, f"{name}_{level}", suite, places, frames[level])
        if docs:
            context.build_data_docs()
    return [_verdict(e, found[place], first_bad or {}) for place, e in enumerate(suite)]


@contextmanager
def _quiet() -> Iterator[None]:
    """Great Expectations without telemetry, progress bars, log lines and warnings."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"  # read once, when the package is imported
    _import()  # it sets its logger's level when imported

    logger = logging.getLogger("great_expectations")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def _import() -> None:
    """Great Expectations without the optional backends that a pandas frame never needs.

    They cost a fifth of its import, which is half of what a contract costs.
    """
    hidden = [name for name in UNUSED if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: import fails
    try:
        import great_expectations  # noqa: F401
    finally:
        for name in hidden:
            del sys.modules[name]


def _context(docs: Path | None) -> Context:
    import great_expectations as gx

    context: Context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    for site in list(context.variables.data_docs_sites or {}):
        context.delete_data_docs_site(site)
    if docs:
        shutil.rmtree(docs, ignore_errors=True)
        backend = {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(docs)}
        site_config = {
            "class_name": "SiteBuilder",
            "store_backend": backend,
            "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
        }
        context.add_data_docs_site(site_name="contract", site_config=site_config)
    return context


def _check(
    context: Context,
    source: Source,
    name: str,
    suite: Sequence[Expectation],
    places: Sequence[int],
    frame: pl.DataFrame,
) -> dict[int, Any]:
    """GX results of one level by place in the suite."""
    import great_expectations as gx

    batch = source.add_dataframe_asset(name).add_batch_definition_whole_dataframe("all")
    rules = gx.ExpectationSuite(name=name, expectations=[_gx(suite[p], p) for p in places])
    definition = gx.ValidationDefinition(name=name, data=batch, suite=context.suites.add(rules))
    checkpoint = gx.Checkpoint(
        name=name,
        validation_definitions=[context.validation_definitions.add(definition)],
        result_format={"result_format": "SUMMARY", "partial_unexpected_count": FIRST_BAD},
    )
    outcome = context.checkpoints.add(checkpoint).run(
        batch_parameters={"dataframe": frame.to_pandas()}  # numpy-backed: Arrow is ten times slower
    )
    (result,) = outcome.run_results.values()
    found: list[Any] = result.results
    return {r.expectation_config.meta["place"]: r for r in found}


def _gx(expectation: Expectation, place: int) -> Any:
    import great_expectations.expectations as kinds

    return getattr(kinds, expectation.kind)(
        **expectation.arguments,
        severity=expectation.severity,
        notes=expectation.reason,
        meta={"place": place},
    )


def _verdict(
    expectation: Expectation, result: Any, first_bad: Mapping[str, Sequence[str]]
) -> Verdict:
    column = str(expectation.arguments.get("column", ""))
    return Verdict(
        expectation=expectation.kind,
        on=expectation.on,
        column=column,
        severity=expectation.severity,
        reason=expectation.reason,
        success=bool(result.success),
        observed=() if result.success else _observed(result, first_bad.get(column, ())),
    )


def _observed(result: Any, explained: Sequence[str]) -> tuple[str, ...]:
    if explained:
        return tuple(explained)
    raised = result.exception_info or {}
    if raised.get("raised_exception") or "exception_info" in raised:
        return (str(raised.get("exception_message", raised))[:200],)
    found = dict(result.result or {})
    values = found.get("partial_unexpected_list") or [found.get("observed_value")]
    return tuple(f"{v:.6g}" if isinstance(v, float) else str(v) for v in values[:FIRST_BAD])
