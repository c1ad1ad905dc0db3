"""A process that replaces a file again and again until it is killed: `writer.py URL NUMBER`."""

import itertools
import sys

from safekeeper.fsspec import SafekeeperFileSystem

if __name__ == "__main__":
    fs = SafekeeperFileSystem(sys.argv[1], part_bytes=64 * 1024)
    print("opened", flush=True)
    for number in itertools.count(int(sys.argv[2])):
        fs.pipe("main/d/f", b"%08d" % number * 40_000)
        print(number, flush=True)
