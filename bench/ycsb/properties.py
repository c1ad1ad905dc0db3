"""YCSB's properties: the Java file format, and YCSB's names and defaults as one value, `YcsbSettings`.

    settings = YcsbSettings.of(load_file("workloada") | parse_assignments(["recordcount=100000"]))

Files written for YCSB are read as they are. What they set for other parts of YCSB (`workload`, a binding's settings) is
listed in `YcsbSettings.ignored`, so that a misspelt name shows.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from safekeeper.bench.ycsb.kinds import MeasurementType
from safekeeper.errors import SafekeeperError
from safekeeper.keeper.overflow import Overflow

BACKEND_PREFIX = "backend."
"""`backend.NAME=VALUE` is the option NAME of the store's URL."""
_BUNDLED = resources.files("safekeeper.bench.ycsb") / "workloads"


class BadProperty(SafekeeperError, ValueError):
    """A property has a value that makes no sense, or a file of properties cannot be read."""


KeyDistribution = Literal["uniform", "zipfian", "latest", "hotspot", "exponential", "sequential"]
LengthDistribution = Literal["constant", "uniform", "zipfian"]
ScanLengthDistribution = Literal["uniform", "zipfian"]
InsertOrder = Literal["hashed", "ordered"]
Interval = Literal["op", "intended", "both"]
SessionKind = Literal["sync", "async"]
SerializerName = Literal["msgpack", "raw", "pickle"]
"""Those that take bytes, which records are."""
Exporter = Literal["TextMeasurementsExporter", "JSONMeasurementsExporter", "JSONArrayMeasurementsExporter"]


def _named(name: str, default: Any) -> Any:
    """A field whose property has a name that Python does not take."""
    return field(default=default, metadata={"name": name})


@dataclass(frozen=True, slots=True, kw_only=True)
class YcsbSettings:
    """YCSB's core properties, each with YCSB's name and default."""

    table: str = "usertable"
    """The group that the records are in."""
    recordcount: int = 0
    """How many records the store has when a run begins."""
    insertstart: int = 0
    """The number of the first record."""
    insertcount: int = -1
    """How many records a load inserts; -1 for those from `insertstart` up to `recordcount`."""
    operationcount: int = 0
    """How many operations a run has; 0 for as many as `maxexecutiontime` allows."""
    fieldcount: int = 10
    fieldlength: int = 100
    minfieldlength: int = 1
    fieldlengthdistribution: LengthDistribution = "constant"
    readallfields: bool = True
    """Read and ignored: the contract has no fields, so every read is of a whole record."""
    writeallfields: bool = False
    """Likewise: every update writes a whole record."""
    dataintegrity: bool = False
    """Whether a record's content follows from its key, and is checked by every read."""
    zeropadding: int = 1
    """How many digits a key has at the least."""
    insertorder: InsertOrder = "hashed"
    readproportion: float = 0.95
    updateproportion: float = 0.05
    insertproportion: float = 0.0
    scanproportion: float = 0.0
    readmodifywriteproportion: float = 0.0
    requestdistribution: KeyDistribution = "uniform"
    hotspotdatafraction: float = 0.2
    hotspotopnfraction: float = 0.8
    exponential_percentile: float = _named("exponential.percentile", 95.0)
    exponential_frac: float = _named("exponential.frac", 0.8571428571)
    minscanlength: int = 1
    maxscanlength: int = 1000
    scanlengthdistribution: ScanLengthDistribution = "uniform"
    threadcount: int = 1
    target: float = 0.0
    """Operations a second of all threads together; 0 for as many as possible."""
    maxexecutiontime: float = 0.0
    """Seconds after which a run or load ends; 0 for never."""
    status_interval: float = _named("status.interval", 10.0)
    """Seconds between two status lines."""
    measurement_interval: Interval = _named("measurement.interval", "op")  # noqa: RUF009
    """Whether a latency counts from the start of the operation, from when `target` meant it to start, or both."""
    measurementtype: MeasurementType = "hdrhistogram"
    """What is kept of each operation, and shown: `safekeeper.bench.ycsb.kinds` has them all."""
    percentiles: tuple[float, ...] = _named("hdrhistogram.percentiles", (50.0, 95.0, 99.0))
    """YCSB 0.17 has 95 and 99; its successor 50, too."""
    hdrhistogram_fileoutput: bool = _named("hdrhistogram.fileoutput", False)
    """Whether each kind of operation gets two files: `READ.hdr`, a log of the histograms of all intervals, and
    `READ.hgrm`, the percentiles of all together. Both are in microseconds."""
    hdrhistogram_path: str = _named("hdrhistogram.output.path", "")
    """What the names of these files begin with: a folder with its slash, or more."""
    histogram_verbose: bool = _named("measurement.histogram.verbose", False)
    """Whether `hdrhistogram` and `histogram` show how often each latency was measured."""
    histogram_buckets: int = _named("histogram.buckets", 1000)
    """How many buckets of a millisecond `histogram` has."""
    timeseries_granularity: int = _named("timeseries.granularity", 1000)
    """Milliseconds of a step of `timeseries`."""
    raw_output_file: str = _named("measurement.raw.output_file", "")
    """The file that `raw` appends every operation to; standard output if empty."""
    raw_no_summary: bool = _named("measurement.raw.no_summary", False)
    """Whether `raw` leaves its summary out."""
    exporter: Exporter = "TextMeasurementsExporter"
    exportfile: str = ""
    """The file that the results go to; standard output if empty."""
    warmup: float = 0.0
    """Not YCSB's: seconds in which operations run before any is measured."""
    driver: SessionKind = "sync"
    """Not YCSB's: "sync" calls the backend and waits; "async" saves through a SafeKeeper, where a write's latency ends
    with its ticket. Load and run with the same one: the keeper's serializer adds a header to each record."""
    keeper_overflow: Overflow = _named("keeper.overflow", "coalesce")  # noqa: RUF009
    """What the keeper does when a queue is full."""
    keeper_queue: int = _named("keeper.queue", 10_000)
    """How many saves may wait in each of the keeper's queues."""
    keeper_serializer: SerializerName = _named("keeper.serializer", "msgpack")  # noqa: RUF009
    keeper_storageworkers: int = _named("keeper.storageworkers", 1)
    """How many of the keeper's threads write to the store."""
    seed: int = -1
    """Not YCSB's: the same seed gives every thread the same operations again; -1 for another one each time."""

    backend_options: Mapping[str, str] = field(default_factory=dict)
    """What was set as `backend.NAME`."""
    ignored: Mapping[str, str] = field(default_factory=dict)
    """What was set and means nothing here."""

    def __post_init__(self) -> None:
        for name in ("recordcount", "operationcount", "insertstart", "fieldlength", "zeropadding"):
            self._require(name, getattr(self, name) >= 0, "it cannot be negative")
        for name in ("fieldcount", "minfieldlength", "minscanlength", "threadcount", *_SIZES):
            self._require(name, getattr(self, name) >= 1, "it is at least 1")
        for name in ("target", "maxexecutiontime", "warmup", "status_interval", *_PROPORTIONS):
            self._require(name, getattr(self, name) >= 0, "it cannot be negative")
        for name in ("hotspotdatafraction", "hotspotopnfraction"):
            self._require(name, 0 <= getattr(self, name) <= 1, "it is from 0 to 1")
        self._require("exponential_percentile", 0 < self.exponential_percentile < 100, "it is between 0 and 100")
        self._require("exponential_frac", self.exponential_frac > 0, "it is above 0")
        self._require("percentiles", all(0 < p <= 100 for p in self.percentiles), "they are above 0, up to 100")
        self._require("maxscanlength", self.maxscanlength >= self.minscanlength, "it is below minscanlength")
        self._require("insertcount", self.insertcount >= -1, "it cannot be negative")
        if self.fieldlengthdistribution != "constant":
            self._require("fieldlength", self.fieldlength >= self.minfieldlength, "it is below minfieldlength")
        if self.dataintegrity and self.fieldlengthdistribution != "constant":
            raise BadProperty("dataintegrity=true needs fieldlengthdistribution=constant")
        if not any(getattr(self, name) for name in _PROPORTIONS):
            raise BadProperty(f"all of {', '.join(_PROPORTIONS)} are 0: there is nothing to do")

    def _require(self, name: str, holds: bool, rule: str) -> None:
        if not holds:
            raise BadProperty(f"{_property_name(name)}={getattr(self, name)}: {rule}")

    @property
    def inserts(self) -> int:
        """How many records a load inserts."""
        return max(self.recordcount - self.insertstart, 0) if self.insertcount < 0 else self.insertcount

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> YcsbSettings:
        """The settings that *properties* make. Raise `BadProperty` where a value makes no sense."""
        hints = get_type_hints(cls)
        names = {_property_name(f.name): f.name for f in dataclasses.fields(cls)[:-2]}
        values: dict[str, Any] = {}
        options: dict[str, str] = {}
        ignored: dict[str, str] = {}
        for name, text in properties.items():
            if name.startswith(BACKEND_PREFIX):
                options[name.removeprefix(BACKEND_PREFIX)] = text
            elif name not in names:
                ignored[name] = text
            else:
                values[names[name]] = _convert(name, hints[names[name]], text.strip())
        return cls(**values, backend_options=options, ignored=ignored)


_SIZES = ("keeper_queue", "keeper_storageworkers", "histogram_buckets", "timeseries_granularity")
_PROPORTIONS = (
    "readproportion",
    "updateproportion",
    "insertproportion",
    "scanproportion",
    "readmodifywriteproportion",
)


def _property_name(field_name: str) -> str:
    metadata: Mapping[str, str] = YcsbSettings.__dataclass_fields__[field_name].metadata
    return metadata.get("name", field_name)


def known_names() -> list[str]:
    """The names of all properties that mean something here."""
    return [_property_name(f.name) for f in dataclasses.fields(YcsbSettings)[:-2]]


def guess(name: str) -> str:
    """A known property that looks like *name*, as ` (did you mean ...?)`, else nothing."""
    close = difflib.get_close_matches(name, known_names(), 1)
    return f" (did you mean {close[0]}?)" if close else ""


def _convert(name: str, hint: Any, text: str) -> Any:
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        word = text.rpartition(".")[2] if name == "exporter" else text  # YCSB writes the name of a Java class
        if word not in choices:
            raise BadProperty(f"{name}={text}: it is one of {', '.join(choices)}")
        return word
    if hint is bool:
        if text.lower() not in ("true", "false"):
            raise BadProperty(f"{name}={text}: it is true or false")
        return text.lower() == "true"
    try:
        if get_origin(hint) is tuple:
            return tuple(float(part) for part in text.split(","))
        return hint(text)
    except ValueError:
        raise BadProperty(f"{name}={text}: it takes {'a whole number' if hint is int else 'numbers'}") from None


def parse_assignments(assignments: Iterable[str]) -> dict[str, str]:
    """The properties that `-p name=value` sets, the last one of a name."""
    properties: dict[str, str] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not name.strip():
            raise BadProperty(f"{assignment!r}: write it as name=value")
        properties[name.strip()] = value
    return properties


def load_file(name: str) -> dict[str, str]:
    """The properties in the file *name*, or in the bundled workload of that name (`workloada`, `s4thesis`)."""
    path = Path(name)
    bundled = _BUNDLED / f"{path.name.removesuffix('.properties')}.properties"
    try:
        text = path.read_text() if path.is_file() or not bundled.is_file() else bundled.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise BadProperty(f"{name}: {reason}; bundled are {', '.join(bundled_workloads())}") from error
    return parse_properties(text)


def bundled_workloads() -> list[str]:
    """The names of the workloads that come with safekeeper."""
    return sorted(f.name.removesuffix(".properties") for f in _BUNDLED.iterdir() if f.name.endswith(".properties"))


_CONTINUED = re.compile(r"(?<!\\)(?:\\\\)*\\$")
_PAIR = re.compile(r"((?:\\.|[^\s=:\\])+)\s*[=:]?\s*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")


def parse_properties(text: str) -> dict[str, str]:
    """The properties in *text*, in the format of `java.util.Properties`."""
    properties: dict[str, str] = {}
    line = ""
    for part in text.splitlines():
        part = part.lstrip()
        if not line and part[:1] in ("", "#", "!"):
            continue
        line += part
        if _CONTINUED.search(line):
            line = line[:-1]
            continue
        _add_pair(line, properties)
        line = ""
    if line:
        _add_pair(line, properties)
    return properties


def _add_pair(line: str, properties: dict[str, str]) -> None:
    pair = _PAIR.fullmatch(line)
    if pair is None:
        raise BadProperty(f"{line!r}: write it as name=value")
    properties[_unescape(pair[1])] = _unescape(pair[2])


def _unescape(text: str) -> str:
    plain = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}

    def one(match: re.Match[str]) -> str:
        escaped = match[1]
        return chr(int(escaped[1:], 16)) if len(escaped) > 1 else plain.get(escaped, escaped)

    return _ESCAPE.sub(one, text)
