"""What the simulations found, as tables and plots."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table

from safekeeper.bench.harness.plots import figure
from safekeeper.bench.harness.svg import Axis, Band, band_plot
from safekeeper.bench.studies.peace_simulator.simulation import (
    ARMS,
    PEACE,
    STOCK,
    SimulatedRun,
    SimulatedSite,
    Simulation,
)

FIGURES = ("own_start", "submission", "everything")


def runs_of(site: SimulatedSite, seeds: Sequence[int]) -> dict[str, list[SimulatedRun]]:
    """Every arm with every seed."""
    return {arm: [Simulation(site, arm, seed).run() for seed in seeds] for arm in ARMS}


def table_of(site: SimulatedSite, runs: Mapping[str, Sequence[SimulatedRun]]) -> Table:
    """The figures of each arm, and what they are of stock's."""
    table = Table(title=f"{site.name}; capacities: wire {site.wire}, link {site.link}", title_justify="left")
    for name in ("arm", "own start (IO), s", "of stock", "submission, s", "of stock", "all (COMP), s", "of stock"):
        table.add_column(name, justify="left" if name == "arm" else "right")
    for arm, outcomes in runs.items():
        cells = []
        for figure_name in FIGURES:
            ours, stock = (
                statistics.median(getattr(o, figure_name) for o in found) for found in (outcomes, runs[STOCK])
            )
            cells += [f"{ours:.1f}", f"{ours / stock:.2f}"]
        table.add_row(arm, *cells)
    return table


def _median(figure_name: str, outcomes: Sequence[SimulatedRun]) -> float:
    return float(statistics.median(getattr(one, figure_name) for one in outcomes))


def business(site: SimulatedSite, outcome: SimulatedRun) -> Iterator[Band]:
    """How busy every link was, and every wire; where there are many servers, the wires of a rack together."""
    network = site.topology().network()
    rows: dict[str, list[int]] = {}
    for edge, (source, target) in enumerate(network.edge_names):
        label = f"{source} to {target}"
        if len(network.nodes) > 40 and source in network.nodes:
            label = f"wires to {target}"
        elif len(network.nodes) > 40 and target in network.nodes:
            label = f"wires of {source}"
        rows.setdefault(label, []).append(edge)
    for label, edges in sorted(rows.items()):
        yield Band(label, [(b.start, b.end, float(b.used[edges].mean())) for b in outcome.fluid.busy])


def writing(site: SimulatedSite, outcome: SimulatedRun) -> Iterator[Band]:
    """When each of the first forty writers had started and was not done."""
    for writer, name in list(enumerate(site.writer_names()))[:40]:
        yield Band(name, [(outcome.started[writer], outcome.done[writer], 1.0)])


def plots_of(site: SimulatedSite, runs: Mapping[str, Sequence[SimulatedRun]]) -> Iterator[str]:
    """For stock and Peace: who writes when, and what is busy when."""
    latest = max(runs[arm][0].everything for arm in (STOCK, PEACE))
    for arm in (STOCK, PEACE):
        outcome, axis = runs[arm][0], Axis("seconds")
        who, what = list(writing(site, outcome)), list(business(site, outcome))
        yield figure(f"{arm}: checkpoints", band_plot(f"{arm}: checkpoints", axis, latest, who), site.name)
        caption = f"{site.name}; darker is busier, wires of a rack together where there are many."
        yield figure(f"{arm}: wires and links", band_plot(f"{arm}: links", axis, latest, what), caption)


def figures_of(found: Sequence[SimulatedRun], stock: Sequence[SimulatedRun] = ()) -> str:
    """From own start, from submission, for all; with what they are of stock's."""
    figures = [
        (_median(name, found), f" ({_median(name, found) / _median(name, stock):.2f})" if stock else "")
        for name in FIGURES
    ]
    return ", ".join(f"{seconds:.1f} s{of_stock}" for seconds, of_stock in figures)
