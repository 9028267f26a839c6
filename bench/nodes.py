r"""Three nodes train together: how long is an epoch, and does it train as well as on one?

    python -m bench.nodes --train train.brand --folder fashion-mnist/train --test test.brand \
        --out bench/results/nodes.json --plot docs/images/nodes.svg

Three network namespaces, each linked by 1 Gbit/s, run `bench.ddp` (gloo, CPU) on Fashion-MNIST, with a batch of 64 on
each rank. `bench.lab` gives a command its own storage, limited like a NAS: 120 MB/s and 400 operations a second.
PyTorch's nodes read plain files from one such storage, as from a shared NAS; each of Brand's nodes has its own. Caches
are dropped before each run. One node alone, which draws the same global batches, gives the accuracy to compare with.

Columns: seconds of each epoch, the first from cold storage; test accuracy after the last epoch; samples sent by other
nodes, over all epochs (gradients cross the same links).
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.harness import LAB, progress, show, table
from bench.system import drop_caches
from brand.cluster.namespaces import Namespace, namespaces

BATCH = 64
NODES = 3
LIMIT_S = 1800.0
MODULES = (
    "torch",
    "torch.distributed.run",
    "brand",
    "brand.torch",
    "brand.cluster.process",
    "PIL.Image",
    "rich.progress",
)


@dataclass(frozen=True)
class Variant:
    """One way to train."""

    name: str
    nodes: int
    options: tuple[str, ...] = ()
    plain: bool = False
    """Whether it reads the folder of files, which all nodes share."""


VARIANTS = (
    Variant("Brand, one node", 1),
    Variant("PyTorch, plain files", NODES, plain=True),
    Variant("Brand, slots", NODES, ("--order", "slots")),
    Variant("Brand, stripes", NODES),
    Variant("Brand, stripes, locality", NODES, ("--locality",)),
)


@dataclass(frozen=True)
class Outcome:
    """The output of a run."""

    variant: Variant
    epochs_s: list[float]
    accuracy: float
    samples_moved: int


def run(variant: Variant, options: argparse.Namespace, spaces: Sequence[Namespace]) -> Outcome:
    """Train once."""
    drop_caches(MODULES)
    data = options.folder if variant.plain else options.train
    lab = [*shlex.split(options.lab), "--profile", options.profile, "--path", str(data), "--"]
    commands = [
        space.command(launch(variant, number, spaces[0].address, data, options))
        for number, space in enumerate(spaces[: variant.nodes])
    ]
    if variant.plain:  # one storage for all nodes
        commands = [["sh", "-c", " & ".join(map(quoted, commands)) + " & wait"]]
    started = [subprocess.Popen([*lab, *command], stdout=subprocess.PIPE, text=True) for command in commands]
    said = [process.communicate(timeout=LIMIT_S)[0] for process in started]
    for process, text in zip(started, said, strict=True):
        if process.returncode:
            raise SystemExit(f"{variant.name} failed with exit code {process.returncode}:\n{text}")
    text = "\n".join(said)
    moved = sum(int(number) for number in re.findall(r"(\d+) samples received", text))
    epochs = [float(seconds) for seconds in re.findall(r"^epoch \d+ in ([\d.]+) s", text, re.MULTILINE)]
    found = re.search(r"test accuracy ([\d.]+)", text)
    if found is None or not epochs:
        raise SystemExit(f"{variant.name} printed no accuracy:\n{text}")
    return Outcome(variant, epochs, float(found[1]), moved)


def launch(variant: Variant, number: int, master: str, data: Path, options: argparse.Namespace) -> list[str]:
    """Return the command of one node."""
    batch = BATCH * NODES // variant.nodes  # the same global batch
    return [
        *("env", "GLOO_SOCKET_IFNAME=eth0", "OMP_NUM_THREADS=1"),
        *(sys.executable, "-m", "torch.distributed.run", f"--nnodes={variant.nodes}", f"--node-rank={number}"),
        *(f"--master-addr={master}", "--master-port=29500", "-m", "bench.ddp", str(data), str(options.test)),
        *(f"--epochs={options.epochs}", f"--batch-size={batch}", *variant.options, *(["--files"] * variant.plain)),
    ]


def quoted(command: Sequence[str]) -> str:
    """Return the command as a line for a shell."""
    return " ".join(f"'{part}'" for part in command)


def plot(outcomes: Sequence[Outcome], path: Path) -> None:
    """Plot the seconds of each epoch."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 3.6))
    for step, outcome in enumerate(reversed(outcomes)):
        for epoch, seconds in enumerate(outcome.epochs_s):
            height = 0.8 / len(outcome.epochs_s)
            place = step + 0.4 - (epoch + 0.5) * height
            axes.barh(place, seconds, 0.9 * height, color=f"C{min(epoch, 1)}", alpha=1 if epoch < 2 else 0.6)
            axes.text(seconds, place, f" {seconds:.0f}", va="center", fontsize=8)
    axes.set_yticks(range(len(outcomes)), [outcome.variant.name for outcome in reversed(outcomes)])
    axes.set(xlabel="seconds of an epoch; blue: the first, from cold storage")
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Run all variants, print a table, save every figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="folder with the same images as files")
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument("--lab", default=LAB, help="the command that limits storage (bench.lab)")
    parser.add_argument("--profile", default="nas")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="names of variants")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    outcomes = []
    with namespaces(NODES, rate="1gbit") as spaces:
        for variant in VARIANTS:
            if not options.only or variant.name in options.only:
                progress(variant.name)
                outcomes.append(run(variant, options, spaces))
    rows = []
    for outcome in outcomes:
        seconds = ", ".join(f"{s:.1f}" for s in outcome.epochs_s)
        accuracy, moved = f"{100 * outcome.accuracy:.2f} %", f"{outcome.samples_moved:,}"
        rows.append((outcome.variant.name, str(outcome.variant.nodes), seconds, accuracy, moved))
    show(table(("", "nodes", "seconds of each epoch", "test accuracy", "samples from other nodes"), rows))
    if options.out:
        options.out.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1) + "\n")
    if options.plot:
        plot(outcomes, options.plot)


if __name__ == "__main__":
    main()
