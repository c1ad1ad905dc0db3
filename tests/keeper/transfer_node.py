"""Moves money between accounts, each transfer in one step, and reports the number of each that is durable.

Beside them it saves single states, so that transfers share batches with what is not theirs.
"""

import random
import sys

from safekeeper import CheckpointId, SafeKeeper

ACCOUNTS = [CheckpointId("accounts", b"%d" % n) for n in range(8)]


def main(url: str, seed: str) -> None:
    dice = random.Random(seed)
    with SafeKeeper(url) as keeper:
        if keeper.fetch(ACCOUNTS[0]) is None:
            keeper.save_together({id: {"balance": 1000, "padding": ""} for id in ACCOUNTS}).result()
        balances = {id: keeper.fetch(id)["balance"] for id in ACCOUNTS}
        number = 0
        print("ready", flush=True)
        while True:
            tickets = []
            for _ in range(dice.choice((1, 5, 20))):
                some = dice.sample(ACCOUNTS, dice.choice((2, 3, 8)))
                amount = dice.randrange(100)
                balances[some[0]] -= amount
                balances[some[1]] += amount
                padding = "x" * dice.choice((0, 100, 30_000))
                changed = {id: {"balance": balances[id], "padding": padding} for id in some}
                tickets.append(keeper.save_together(changed))
                keeper.save(CheckpointId("others", b"%d" % dice.randrange(50)), number)
            for ticket in tickets:
                ticket.result()
            number += len(tickets)
            print(number, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
