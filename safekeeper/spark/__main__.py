"""What `spark-submit` takes, printed.

python -m safekeeper.spark jar                      the path of the jar; it is compiled now if need be
python -m safekeeper.spark conf URL [NAME=VALUE]    the --conf arguments, one a line; with checkpoints=true also those
                                                    for checkpoints in safekeeper://VOLUME/PATH

spark-submit $(python -m safekeeper.spark conf log:///var/lib/app/state) job.py
"""

from __future__ import annotations

import sys

from safekeeper.errors import SafekeeperError
from safekeeper.spark import BadSetup, check_backend, jar, settings


def main(arguments: list[str]) -> int:
    """Print what was asked for; 1 when that cannot be had, with the reason on standard error."""
    try:
        match arguments:
            case ["jar"]:
                print(jar())
            case ["conf", url, *options] if all("=" in option for option in options):
                check_backend(url, "local")
                given: dict[str, object] = {**dict(option.split("=", 1) for option in options)}
                if (checkpoints := given.pop("checkpoints", "false")) not in ("true", "false"):
                    raise BadSetup(f"checkpoints={checkpoints}: it takes true or false")
                for name, value in settings(url, checkpoints=checkpoints == "true", **given).items():
                    print(f"--conf {name}={value}")
            case _:
                print(__doc__, file=sys.stderr)
                return 2
    except SafekeeperError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
