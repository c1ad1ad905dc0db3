"""What is behind `SafeKeeper`: the two queues, their workers, and exactly one completion for each save.

Read in this order: `ticket` (what travels), `queue` (bounded, a lane per id), `stage` (a queue and its threads),
`completions` (each save ends once), `pipeline` (all of it together), `overflow`, `line`; then `reading` and `fuse` for
the way back, `lifetime` for forks and the end of the process.
"""
