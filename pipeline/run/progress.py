"""Progress of long work: rich bars on a terminal, one plain line every ten seconds elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from types import TracebackType

log = logging.getLogger(__name__)
LINE_EVERY_S = 10.0


class Progress:
    """Counts steps of one piece of work: `with Progress(title, total) as p: p.step(1, loss=.6)`."""

    def __init__(self, title: str, total: int) -> None:
        self.title, self.total, self.done = title, max(total, 1), 0
        self.began = self.last_line = time.monotonic()
        self._bar = None
        if sys.stderr.isatty():
            from rich.progress import Progress as Bar

            self._bar = Bar(transient=True)
            self._task = self._bar.add_task(title, total=self.total)

    def __enter__(self) -> Progress:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar:
            self._bar.stop()

    def step(self, count: int = 1, **figures: float) -> None:
        """Advance by `count`; `figures` (loss, NE, samples/s, ...) are shown with the step."""
        self.done += count
        if self._bar:
            text = " ".join(f"{k}={v:.4g}" for k, v in figures.items())
            self._bar.update(self._task, completed=self.done, description=f"{self.title} {text}")
            return
        now = time.monotonic()
        if now - self.last_line >= LINE_EVERY_S or self.done >= self.total > 1:
            self.last_line = now
            self._write(now - self.began, figures)

    def _write(self, elapsed: float, figures: dict[str, float]) -> None:
        left = elapsed / max(self.done, 1) * max(self.total - self.done, 0)
        text = " ".join(f"{k}={v:.4g}" for k, v in figures.items())
        log.info("%s %d/%d eta %.0fs %s", self.title, self.done, self.total, left, text)
