"""Measuring stores: ratios against a peer or a physical limit, both measured in the same run.

    cli.py      the commands of `safekeeper bench`: start here
    ycsb/       what they do: YCSB's workloads against any store
    studies/    one file a question, such as what `redis:` costs on top of redis-py
    harness/    what studies and commands measure and show with: rounds, goals, plots, `safekeeper bench all`
    lab/        the sites of studies that need root or a compiler; in a clone of the repository, not in the wheel

`ycsb` and `harness` open stores by URL and know no backend. A study may know the backend that it is about.
"""
