"""The last part: an operator that counts what Spark has sent.

STORE=log:///var/lib/total COUNTS=store:log:///var/lib/counts?stream=counts \
    TOTALS=redis://127.0.0.1:6379/0?stream=totals python total.py
"""

import os

from safekeeper.operators import Operator


def total(store: str, counts: str, totals: str) -> None:
    """Go on for ever. An element that came twice, or never, would show in all later ones of its word."""
    with Operator("total", store, inputs={"counts": counts}, outputs={"totals": totals}) as operator:
        for event in operator:
            part = operator.part(event.key, new=int)
            part.state += 1
            operator.emit("totals", key=event.key, body=b"%d %b" % (part.state, event.body))


if __name__ == "__main__":
    total(os.environ["STORE"], os.environ["COUNTS"], os.environ["TOTALS"])
