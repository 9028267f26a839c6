"""The cells of the frameworks, run and judged: exact, refused with a cure that is followed and exact, or wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.matrix.cells import DEFAULTS, FITS, FRAMEWORKS, LOADERS, Cell, makes_sense
from tests.matrix.jobs import Job, make_data
from tests.matrix.judge import model_of, phases, wrong
from tests.matrix.loops import Outcome, Samples, Task
from tests.matrix.ways.cures import COMMON, CURES, REPORTS

EXACT, REFUSED, REPORTED, WRONG = "exact", "refused", "reported", "WRONG"
"""`reported`: Brand's log says that samples are left out, how many, and the cure."""


@dataclass
class Verdict:
    """How a cell ended."""

    word: str
    message: str = ""
    """The message for a cell that is not exact."""
    cures: list[Cell] = field(default_factory=list)
    """The cells that cure a cell that is refused or reported."""

    def __str__(self) -> str:
        return " -> ".join((self.word, *map(str, self.cures)))


Show = Callable[[Cell, Verdict], None]


class Matrix:
    """The data, and the frameworks that were used so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = make_data(folder)
        samples = Samples(folder)
        self.models = {loader: model_of(samples, loader) for loader in LOADERS}
        self._frameworks: dict[str, Verdicts] = {}

    def of(self, framework: str) -> Verdicts:
        """Return the verdicts of a framework."""
        if framework not in self._frameworks:
            (work := self.folder / framework.replace(" ", "-")).mkdir()
            self._frameworks[framework] = Verdicts(framework, self, work)
        return self._frameworks[framework]

    def judge(
        self, frameworks: Iterable[str], cells: Sequence[Cell], show: Show = lambda *_: None
    ) -> dict[str, dict[Cell, Verdict]]:
        """Return the verdicts of the cells of some frameworks, by framework. `show` gets each of them.

        Three frameworks at a time, because their processes wait for each other most of the time: the longest ones
        first, after the plain loop, which has cures of others.
        """
        mine = {framework: [cell for cell in cells if cell.framework == framework] for framework in frameworks}
        every = [self.of(framework) for framework in mine]
        first = [verdicts for verdicts in every if verdicts.framework == next(iter(FRAMEWORKS))]
        found = [verdicts.judge(mine[verdicts.framework], show) for verdicts in first]
        others = [verdicts for verdicts in reversed(every) if verdicts not in first]
        others.sort(key=lambda verdicts: -len(mine[verdicts.framework]))
        with ThreadPoolExecutor(3) as pool:
            found += pool.map(lambda verdicts: verdicts.judge(mine[verdicts.framework], show), others)
        return dict(zip((verdicts.framework for verdicts in first + others), found, strict=True))

    def end(self) -> None:
        """End all processes."""
        for verdicts in self._frameworks.values():
            verdicts.end()


class Verdicts:
    """The verdicts of the cells of a framework."""

    def __init__(self, framework: str, matrix: Matrix, folder: Path) -> None:
        self.framework, self._matrix, self._folder = framework, matrix, folder
        self._jobs = {ranks: Job(framework, ranks, matrix.folder, folder) for ranks in (1, 2)}
        self._locks = {ranks: threading.Lock() for ranks in self._jobs}
        self._cures = CURES.get(framework, ()) + COMMON
        self._runs: dict[Task, tuple[list[Outcome], Path]] = {}
        self._found: dict[Cell, Verdict] = {}
        self.followed: set[Cell] = set()
        """The cells that were run as the cure of another one."""

    def judge(self, cells: Iterable[Cell], show: Show = lambda *_: None) -> dict[Cell, Verdict]:
        """Return the verdicts of these cells. `show` gets each of them."""
        found = dict[Cell, Verdict]()

        def judge_some(some: list[Cell]) -> None:
            for cell in some:
                found[cell] = self._judge(cell)
                show(cell, found[cell])

        of_ranks = [[cell for cell in cells if cell.ranks == ranks] for ranks in self._jobs]
        try:
            with ThreadPoolExecutor(len(of_ranks)) as pool:
                list(pool.map(judge_some, of_ranks))
        finally:
            self.end()
        return found

    def end(self) -> None:
        """End the processes. A further run starts them again."""
        for job in self._jobs.values():
            job.end()

    def _judge(self, cell: Cell) -> Verdict:
        """Return the verdict of a cell, from its runs, and from those of its cures."""
        found = self.verdict(cell)
        if found.word in (REFUSED, REPORTED):
            cures = self.cures_of(cell, found)
            faults = [self._fault(cell, cure, 2) for cure in cures] or ["it names no cure"]
            found = replace(found, cures=cures)
            if fault := next(filter(None, faults), ""):
                found = Verdict(WRONG, f"{found.word}, and {fault}: {found.message}")
        return found

    def cures_of(self, cell: Cell, found: Verdict) -> list[Cell]:
        """Return the cells that the message of a verdict names."""
        return list(dict.fromkeys(cure.change(cell) for cure in self._cures if cure.phrase in found.message))

    def _fault(self, cell: Cell, cure: Cell, errors: int) -> str:
        """Return the fault of a cure; an empty text if it is exact, after that many errors and their cures at most."""
        if cure == cell or not makes_sense(cure):
            return f"its cure ({cure}) is no other cell"
        verdicts = self._matrix.of(cure.framework)
        verdicts.followed.add(cure)
        found = verdicts.verdict(cure)
        if found.word == REFUSED and errors > 1 and (more := verdicts.cures_of(cure, found)):
            return next(filter(None, (verdicts._fault(cure, each, errors - 1) for each in more)), "")
        return "" if found.word == EXACT else f"its cure ({cure}) is {found.word} ({found.message})"

    def verdict(self, cell: Cell) -> Verdict:
        """Return the verdict of a cell without its cures."""
        if cell not in self._found:
            self._found[cell] = self._of_runs(cell)
        return self._found[cell]

    def _of_runs(self, cell: Cell) -> Verdict:
        resume, epochs, own = None, self._matrix.models[cell.loader], ("accumulation", "last batch")
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
            if ended := self._refusal(outcomes):
                return ended
            if told := wrong(cell, phase, epochs, outcomes):
                log = (line for outcome in outcomes for line in outcome.facts.get("log", ()))
                said = next((line for line in log if any(report in line for report in REPORTS)), None)
                return Verdict(WRONG, f"run {number + 1}: {told}") if said is None else Verdict(REPORTED, said)
            resume = folder
        return Verdict(EXACT) if self._alike(cell, outcomes) else Verdict(WRONG, "other weights than without Brand")

    def _refusal(self, outcomes: list[Outcome]) -> Verdict | None:
        """Return the verdict of a run that Brand or the framework has refused; None for any other run."""
        for outcome in outcomes:
            known = outcome.end == "failed" and any(cure.phrase in outcome.message for cure in self._cures)
            if outcome.end == "refused" or known:
                return Verdict(REFUSED, outcome.message)
        return None

    def _alike(self, cell: Cell, outcomes: list[Outcome]) -> bool:
        """Whether the weights are those of the framework without Brand, over the same order. Two ranks round others."""
        if cell.ranks > 1 or cell.loader not in ("DataLoader", "BrandLoader") or cell.use not in FITS[:1] + FITS[2:-1]:
            return True
        use = cell.use if cell.use == "accumulation" else FITS[0]
        said = cell.said if cell.framework not in ("HF Trainer", "StatefulDataLoader") else DEFAULTS
        order = tuple(tuple(n for unit in epoch for n in unit) for epoch in self._matrix.models["DataLoader"])
        task = Task(replace(cell, loader="DataLoader", workers=0, use=use, said=said), Path(), stock=order)
        with self._locks[1]:
            if task not in self._runs:
                self._runs[task] = self._jobs[1].run(task), Path()
        (stock,) = self._runs[task][0]
        assert stock.end == "finished", f"{task.cell} without Brand: {stock}"
        return bool(outcomes[0].facts["weights"] == stock.facts["weights"])
