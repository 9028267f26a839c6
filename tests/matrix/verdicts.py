"""The cells of one framework, run and judged: exact, refused with a cure that is followed and exact, or wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from tests.matrix.cells import DEFAULTS, FITS, Cell, makes_sense
from tests.matrix.jobs import Job
from tests.matrix.judge import Epochs, phases, wrong
from tests.matrix.loops import Outcome, Task
from tests.matrix.ways.cures import CURES

Show = Callable[[Cell, str, list[Cell]], None]
EXACT, REFUSED, WRONG = "exact", "refused", "WRONG"


class Verdicts:
    """The verdicts of the cells of a framework."""

    def __init__(self, framework: str, data: Path, folder: Path, models: dict[str, Epochs]) -> None:
        self.framework, self._folder, self._models = framework, folder, models
        self._jobs = {ranks: Job(framework, ranks, data, folder) for ranks in (1, 2)}
        self._locks = {ranks: threading.Lock() for ranks in self._jobs}
        self._cures = CURES.get(framework, ())
        self._runs: dict[Task, tuple[list[Outcome], Path]] = {}
        self._words: dict[Cell, str] = {}
        self.messages: dict[Cell, str] = {}
        """The message for each cell that is refused or wrong."""
        self.cures: dict[Cell, list[Cell]] = {}
        """The cells that cure each refused cell."""

    def judge(self, cells: Iterable[Cell], show: Show = lambda *_: None) -> dict[Cell, str]:
        """The verdicts of these cells, and of the cures of those that are refused. `show` gets each of them."""

        def judge_some(some: list[Cell]) -> None:
            for cell in some:
                word = self._judge(cell)
                show(cell, word, self.cures.get(cell, []))

        of_ranks = [[cell for cell in cells if cell.ranks == ranks] for ranks in self._jobs]
        try:
            with ThreadPoolExecutor(len(of_ranks)) as pool:
                list(pool.map(judge_some, of_ranks))
        finally:
            for job in self._jobs.values():
                job.end()
        return dict(self._words)

    def _judge(self, cell: Cell) -> str:
        """The verdict of a cell, from its runs, and from those of its cures."""
        word, message = self._word(cell)
        if word == REFUSED:
            self.cures[cell] = [cure.change(cell) for cure in self._cures if cure.phrase in message]
            told = [self._cured(cell, cure) for cure in self.cures[cell]] or ["it names no cure"]
            word = REFUSED if not any(told) else f"{WRONG}: refused, and {next(filter(None, told))}: {message}"
            self._words[cell] = word
        return word

    def _cured(self, cell: Cell, cure: Cell) -> str:
        """Return the fault of a cure; an empty text if it is exact."""
        if cure == cell or not makes_sense(cure):
            return f"its cure ({cure}) is no other cell"
        if cure.framework != self.framework:
            return ""
        word, message = self._word(cure)
        return "" if word == EXACT else f"its cure ({cure}) is {word} ({message})"

    def _word(self, cell: Cell) -> tuple[str, str]:
        """The verdict of a cell without its cures, and the message if it is not exact."""
        if cell not in self._words:
            self._words[cell], self.messages[cell] = self._of_runs(cell)
        return self._words[cell], self.messages[cell]

    def _of_runs(self, cell: Cell) -> tuple[str, str]:
        resume, epochs, own = None, self._models[cell.loader], ("accumulation", "last batch")
        for number, phase in enumerate(phases(cell, epochs)):
            whole = phase.stop is None and resume is None
            first = replace(cell, ranks=phase.ranks, use=cell.use if whole or cell.use in own else "inside")
            folder = self._folder / str(abs(hash((cell, number))))
            task = Task(first, folder, phase.stop, resume)
            key = replace(task, folder=Path())
            with self._locks[phase.ranks]:
                if key not in self._runs:
                    self._runs[key] = (self._jobs[phase.ranks].run(task), folder)
            outcomes, folder = self._runs[key]
            refused = next((outcome.message for outcome in outcomes if self._refuses(outcome)), None)
            if refused is not None:
                return REFUSED, refused
            told = wrong(cell, phase, epochs, outcomes)
            if told:
                return f"{WRONG}: run {number + 1}: {told}", told
            resume = folder
        return (EXACT, "") if self._alike(cell, outcomes) else (f"{WRONG}: other weights than the stock framework", "")

    def _alike(self, cell: Cell, outcomes: list[Outcome]) -> bool:
        """Whether the weights are those of the framework without Brand, over the same order. Two ranks round others."""
        if cell.ranks > 1 or cell.loader not in ("DataLoader", "BrandLoader") or cell.use not in FITS[:1] + FITS[2:-1]:
            return True
        use = cell.use if cell.use == "accumulation" else FITS[0]
        said = cell.said if cell.framework not in ("HF Trainer", "StatefulDataLoader") else DEFAULTS
        order = tuple(tuple(n for unit in epoch for n in unit) for epoch in self._models["DataLoader"])
        task = Task(replace(cell, loader="DataLoader", workers=0, use=use, said=said), Path(), stock=order)
        with self._locks[1]:
            if task not in self._runs:
                self._runs[task] = self._jobs[1].run(task), Path()
        (stock,) = self._runs[task][0]
        assert stock.end == "finished", f"{task.cell} without Brand: {stock}"
        return bool(outcomes[0].facts["weights"] == stock.facts["weights"])

    def _refuses(self, outcome: Outcome) -> bool:
        """Whether Brand has refused a run, or the framework itself has, with a cure that is known."""
        known = any(cure.phrase in outcome.message for cure in self._cures)
        return outcome.end == "refused" or (outcome.end == "failed" and known)
