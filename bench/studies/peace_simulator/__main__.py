"""Peace on networks that this machine cannot hold: the planner and the schedule that `hdfs:` uses, on simulated time.

Chunks are fluids (`fluid.py`): what is simulated is who shares what with whom, nothing else. Assumed besides, for the
paper's 17 servers: wires and the link between the racks carry 110 MB/s in each direction, a disk writes 45 MB/s
(the paper's DataNode: two clients at 22.5 MB/s each), stock writers write four chunks at a time, chunks have 64 MB. The
link's capacity is what it carries while a DataNode writes two chunks to its disk: that is a timestep.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from safekeeper.backends.hdfs.peace.planner import Rules
from safekeeper.backends.hdfs.peace.schedule import ChunkRequest, Schedule
from safekeeper.bench.harness.goals import Goal
from safekeeper.bench.harness.plots import figures, page
from safekeeper.bench.studies.peace_simulator.report import figures_of, plots_of, runs_of, table_of
from safekeeper.bench.studies.peace_simulator.simulation import LARGE, PAPER, PEACE, REPLICAS, STOCK, Simulation
from safekeeper.bench.studies.peace_simulator.sweep import beside_the_paper, cases, goals_of
from safekeeper.bench.studies.peace_simulator.sweep import table_of as sweep_table

UNEVEN = 0.5
RULES: dict[Rules, str] = {"ours": "our", "paper": "the paper's"}


def planning(chunks: int) -> float:
    """Processor seconds to plan *chunks* chunks of 1,000 servers, timestep after timestep."""
    site = replace(LARGE, chunks=chunks // LARGE.writers)
    schedule = Schedule(site.topology().network(), random.Random(1))  # noqa: S311 - the same for everybody
    began = time.process_time()
    for name in site.writer_names():
        schedule.ask(ChunkRequest(name, REPLICAS, site.chunks))
    while grants := schedule.start():
        for grant in grants:
            schedule.done(grant.number)
    return time.process_time() - began


def main() -> None:
    """Run the simulations as the command line says."""
    parser = argparse.ArgumentParser(description="Peace on simulated networks.")
    parser.add_argument("--quick", action="store_true", help="the paper's site only, with one seed")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", choices=("figure10",), help="the sweep over writers and sizes, and nothing else")
    parser.add_argument("--output", type=Path, help="write a page with plots there")
    given = parser.parse_args()
    console, plots = Console(width=130), list[str]()
    seeds = range(1 if given.quick else given.seeds)
    swept = list(cases(seeds, *(((8, 16), (2, 8)) if given.quick else ())))
    console.print(sweep_table(swept))
    for goal in goals_of(swept):
        print(goal)
    for line in beside_the_paper(swept):
        print(line)
    if given.only:
        return
    for site in [PAPER] if given.quick else [PAPER, LARGE]:
        runs = runs_of(site, seeds if site is PAPER else seeds[:1])
        console.print(table_of(site, runs))
        if site is PAPER:
            console.print("The paper: IO 45 s with stock, under 20 s with Peace; COMP 55 s and 75 s (1.36).")
            _print_choices(console, seeds)
        plots += plots_of(site, runs)
    times = {chunks: planning(chunks) for chunks in (5_000, 10_000, 20_000)}
    console.print("planning on 1,000 servers: " + ", ".join(f"{n:,} chunks {t:.2f} s" for n, t in times.items()))
    print(Goal(f"10,000 chunks on 1,000 servers planned in less than 2 s: {times[10_000]:.2f} s", times[10_000] < 2))
    per_chunk = (times[20_000] / 20_000) / (times[5_000] / 5_000)
    print(Goal(f"planning is linear: a chunk of 20,000 takes {per_chunk:.2f} of one of 5,000", per_chunk < 1.3))
    if given.output is not None:
        given.output.write_text(page("Peace, simulated", [figures(plots)]))


def _print_choices(console: Console, seeds: Sequence[int]) -> None:
    """What the choices that the paper leaves open come to."""
    for uneven in (0.0, UNEVEN):
        site = replace(PAPER, uneven=uneven)
        stock = [Simulation(site, STOCK, seed).run() for seed in seeds]
        console.print(f"Disks that differ by up to {uneven:.0%}: stock {figures_of(stock)}")
        for rules, whose in RULES.items():
            for link in (2, 3, 4, 5):
                found = [Simulation(replace(site, given_link=link), PEACE, s, rules=rules).run() for s in seeds]
                console.print(f"Peace by {whose} rules, link capacity {link}: {figures_of(found, stock)}")
            found = [Simulation(site, PEACE, seed, "release", rules).run() for seed in seeds]
            console.print(f"the same, link capacity 4, unfinished writes release theirs: {figures_of(found, stock)}")


if __name__ == "__main__":
    main()
