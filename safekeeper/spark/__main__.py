"""What `spark-submit` and `spark-defaults.conf` take, printed.

python -m safekeeper.spark jar                                  the path of the jar; it is compiled now if need be
python -m safekeeper.spark conf URL [NAME=VALUE]                the --conf arguments, one a line; with checkpoints=true
                                                                also those for checkpoints in safekeeper://VOLUME/PATH
python -m safekeeper.spark conf --properties URL [NAME=VALUE]   the same as lines of spark-defaults.conf

spark-submit $(python -m safekeeper.spark conf log:///var/lib/app/state) job.py
python -m safekeeper.spark conf --properties log:///var/lib/app/state >> $SPARK_HOME/conf/spark-defaults.conf
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
            case ["conf", "--properties", url, *options] if all("=" in option for option in options):
                for name, value in asked(url, options).items():
                    print(property_line(name, value))
            case ["conf", url, *options] if url != "--properties" and all("=" in option for option in options):
                for name, value in asked(url, options).items():
                    print(f"--conf {name}={value}")
            case _:
                print(__doc__, file=sys.stderr)
                return 2
    except SafekeeperError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def asked(url: str, options: list[str]) -> dict[str, str]:
    """The settings for what is on the command line, once the backend was opened."""
    given: dict[str, object] = {**dict(option.split("=", 1) for option in options)}
    if (checkpoints := given.pop("checkpoints", "false")) not in ("true", "false"):
        raise BadSetup(f"checkpoints={checkpoints}: it takes true or false")
    wanted = checkpoints == "true"
    check_backend(url, "local", checkpoints=wanted)
    return settings(url, checkpoints=wanted, **given)


def property_line(name: str, value: str) -> str:
    """A line of a properties file, as Java reads it: a backslash would take the next character's meaning."""
    return f"{name} {value}".replace("\\", "\\\\")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
