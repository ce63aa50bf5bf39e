"""The ledger: every row that came in went out, was quarantined, or was a duplicate."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pipeline.run.errors import ContractError


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Counts of one table and day; `reasons` splits the quarantined and duplicate rows."""

    table: str
    day: str
    rows_in: int
    rows_out: int
    quarantined: int
    duplicates: int
    sampled_out: int = 0
    reasons: tuple[tuple[str, int], ...] = ()
    broken_files: tuple[str, ...] = ()
    schema_changes: tuple[str, ...] = ()
    defaulted: tuple[str, ...] = ()
    fingerprint: str = ""

    def checked(self) -> Entry:
        """This entry; `ContractError` when its rows do not add up."""
        accounted = self.rows_out + self.quarantined + self.duplicates + self.sampled_out
        if accounted != self.rows_in:
            raise ContractError(
                f"ledger of {self.table} on {self.day} does not add up: rows_in {self.rows_in} != "
                f"rows_out {self.rows_out} + quarantined {self.quarantined} + duplicates "
                f"{self.duplicates} + sampled_out {self.sampled_out}; the stage lost rows"
            )
        named = sum(count for _, count in self.reasons)
        if named != self.quarantined + self.duplicates:
            raise ContractError(
                f"ledger of {self.table} on {self.day} names a reason for {named} rows, but "
                f"{self.quarantined + self.duplicates} were refused; every one needs a reason"
            )
        return self


def listed(entries: list[Entry]) -> list[dict[str, Any]]:
    """Entries as JSON-ready dicts, reasons as a mapping."""
    return [asdict(e) | {"reasons": dict(e.reasons)} for e in entries]


def totals(entries: list[Entry]) -> dict[str, dict[str, int]]:
    """Sums per table over all days."""
    counts = ("rows_in", "rows_out", "quarantined", "duplicates", "sampled_out")
    tables = sorted({e.table for e in entries})
    return {
        t: {c: sum(getattr(e, c) for e in entries if e.table == t) for c in counts} for t in tables
    }
