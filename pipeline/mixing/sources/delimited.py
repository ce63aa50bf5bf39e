"""Large delimited files as a stream of small frames, in the file's order.

Plain or gzip; memory stays at a few blocks however long the file is. Nothing is guessed: a column
is whole numbers unless its reader calls it text, and null where a text is none.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.csv as pc

from pipeline.run.errors import DataError

BLOCK_BYTES = 16 << 20
MOST_MALFORMED = 1_000  # lines with another number of fields than the head: more, and it is no CSV
KEPT_TEXT = 200


@dataclass(kw_only=True)
class Malformed:
    """Lines of all files that have another number of fields than they should."""

    count: int = 0
    lines: list[str] = field(default_factory=list)

    def skip(self, row: pc.InvalidRow) -> str:
        """Count a line and keep its beginning; pyarrow's `invalid_row_handler`."""
        self.count += 1
        if self.count > MOST_MALFORMED:
            return "error"
        self.lines.append(row.text[:KEPT_TEXT])
        return "skip"


def stream(
    paths: tuple[Path, ...],
    columns: Mapping[str, tuple[str, ...]],
    malformed: Malformed,
    *,
    head: tuple[str, ...] = (),
    texts: Container[str] = (),
) -> Iterator[pl.DataFrame]:
    """Frames of int64 columns from CSV files, one after the other; `texts` stay texts.

    `columns`: name in the frame -> names that the file may use for it. `head`: the columns of
    files without a head line. Raises `DataError` naming the file: a column is missing, or it is
    no CSV.
    """
    for path in paths:
        names = head or _head(path)
        chosen = {name: _present(path, wanted, names) for name, wanted in columns.items()}
        try:
            with pa.input_stream(str(path), compression="detect") as raw:
                for frame in _frames(raw, names, chosen, malformed, has_head=not head):
                    yield _numbers(frame, texts)
        except (pa.ArrowInvalid, OSError, EOFError) as error:
            reason = (str(error).splitlines() or [""])[0][:300]
            raise DataError(f"{path} cannot be read: {reason}; download it again") from None


def _frames(
    raw: pa.NativeFile,
    names: tuple[str, ...],
    chosen: dict[str, str],
    malformed: Malformed,
    *,
    has_head: bool,
) -> Iterator[pl.DataFrame]:
    reader = pc.open_csv(
        raw,
        read_options=pc.ReadOptions(
            block_size=BLOCK_BYTES,
            use_threads=False,
            column_names=list(names),
            skip_rows=int(has_head),
        ),
        parse_options=pc.ParseOptions(invalid_row_handler=malformed.skip),
        convert_options=pc.ConvertOptions(
            include_columns=list(chosen.values()),
            column_types=dict.fromkeys(names, pa.string()),
            strings_can_be_null=True,
            null_values=["", "NULL", "null"],
        ),
    )
    for batch in reader:
        frame = pl.from_arrow(batch)
        if isinstance(frame, pl.DataFrame) and frame.height:
            yield frame.select(pl.col(own).alias(name) for name, own in chosen.items())


def _head(path: Path) -> tuple[str, ...]:
    """The names of the head line, without the blanks that some files carry around them."""
    with pa.input_stream(str(path), compression="detect") as raw:
        line = raw.read(1 << 16).split(b"\n", 1)[0]
    text = line.decode("utf-8-sig", errors="replace").strip()
    return tuple(name.strip().strip('"').strip() for name in text.split(","))


def _present(path: Path, wanted: tuple[str, ...], names: tuple[str, ...]) -> str:
    for name in wanted:
        if name in names:
            return name
    raise DataError(
        f"{path} has no column {' or '.join(wanted)}, only {list(names)}; "
        "use the file as it is published"
    )


def _numbers(frame: pl.DataFrame, texts: Container[str]) -> pl.DataFrame:
    return pl.DataFrame([c if c.name in texts else whole(c) for c in frame.get_columns()])


def whole(texts: pl.Series) -> pl.Series:
    """Texts as int64, also where they were written as 3.0; null where one is no whole number.

    Exact up to 2**53 for the second form.
    """
    values = texts.cast(pl.Int64, strict=False)
    if values.null_count() == texts.null_count():
        return values
    plain = texts.str.strip_chars()
    decimal = plain.cast(pl.Float64, strict=False)
    decimal = decimal.set((decimal != decimal.floor()).fill_null(True), None)
    values = plain.cast(pl.Int64, strict=False)
    return values.fill_null(decimal.cast(pl.Int64, strict=False)).alias(texts.name)


def shifted(name: str) -> pl.Expr:
    """A coded column plus one, so that 0 can say: not known."""
    return (pl.col(name) + 1).fill_null(0)
