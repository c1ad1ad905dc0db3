"""The first part: an operator that makes words of lines.

STORE=log:///var/lib/tidy LINES=redis://127.0.0.1:6379/0?stream=lines WORDS=redis://127.0.0.1:6379/0?stream=words \
    python tidy.py
"""

import os

from safekeeper.operators import Operator


def tidy(store: str, lines: str, words: str) -> None:
    """Go on for ever. What Spark has committed it acknowledges, and then the words are let go of here."""
    readers = {"words": ["spark"]}
    with Operator("tidy", store, inputs={"lines": lines}, outputs={"words": words}, readers=readers) as operator:
        for event in operator:
            word = event.body.strip().lower()
            if word:
                operator.emit("words", key=word, body=event.body)


if __name__ == "__main__":
    tidy(os.environ["STORE"], os.environ["LINES"], os.environ["WORDS"])
