"""Schemas by their text, without a JVM that parses them."""

from pyspark.sql.types import (
    BinaryType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

TYPES = {
    "bigint": LongType(),
    "binary": BinaryType(),
    "date": DateType(),
    "decimal": DecimalType(10, 2),
    "int": IntegerType(),
    "string": StringType(),
    "timestamp": TimestampType(),
    "timestamp_ntz": TimestampNTZType(),
}


def schema(text):
    """The schema of flat columns: `"word string, n int"`."""
    pairs = (column.split() for column in text.split(","))
    return StructType([StructField(name, TYPES[kind]) for name, kind in pairs])
