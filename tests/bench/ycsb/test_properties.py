from pathlib import Path

import pytest

from safekeeper.bench.ycsb.properties import (
    BadProperty,
    YcsbSettings,
    bundled_workloads,
    load_file,
    parse_assignments,
    parse_properties,
)


def test_the_java_format_is_understood():
    text = (
        "# a comment\n! another\n\nplain=1\n  indented = 2  \ncolon: 3\nspace 4\nempty\nlong=a,\\\n   b\n"
        "esc\\=aped=\\u0041\\tB\ntwo=x=y\nlast=no newline"
    )
    assert parse_properties(text) == {
        "plain": "1",
        "indented": "2  ",
        "colon": "3",
        "space": "4",
        "empty": "",
        "long": "a,b",
        "esc=aped": "A\tB",
        "two": "x=y",
        "last": "no newline",
    }


def test_defaults_are_ycsbs():
    settings = YcsbSettings.of({})
    assert (settings.fieldcount, settings.fieldlength, settings.readproportion) == (10, 100, 0.95)
    assert (settings.requestdistribution, settings.insertorder, settings.threadcount) == ("uniform", "hashed", 1)
    assert (settings.percentiles, settings.measurement_interval) == ((50, 95, 99), "op")


def test_names_and_values_are_taken_as_ycsb_writes_them():
    settings = YcsbSettings.of(
        {
            "hdrhistogram.percentiles": "50,99.9",
            "measurement.interval": "both",
            "exporter": "site.ycsb.measurements.exporter.JSONArrayMeasurementsExporter",
            "dataintegrity": "TRUE",
            "recordcount": " 10 ",
            "workload": "site.ycsb.workloads.CoreWorkload",
            "backend.sync": "none",
        }
    )
    assert settings.percentiles == (50, 99.9)
    assert settings.exporter == "JSONArrayMeasurementsExporter"
    assert settings.dataintegrity
    assert settings.recordcount == 10
    assert settings.ignored == {"workload": "site.ycsb.workloads.CoreWorkload"}
    assert settings.backend_options == {"sync": "none"}


@pytest.mark.parametrize(
    ("properties", "says"),
    (
        ({"requestdistribution": "zipf"}, "requestdistribution=zipf: it is one of uniform, zipfian, latest"),
        ({"recordcount": "many"}, "recordcount=many: it takes a whole number"),
        ({"recordcount": "-1"}, "recordcount=-1: it cannot be negative"),
        ({"threadcount": "0"}, "threadcount=0: it is at least 1"),
        ({"dataintegrity": "yes"}, "dataintegrity=yes: it is true or false"),
        ({"hdrhistogram.percentiles": "50,x"}, "hdrhistogram.percentiles=50,x: it takes numbers"),
        ({"hdrhistogram.percentiles": "101"}, "up to 100"),
        ({"readproportion": "0", "updateproportion": "0"}, "there is nothing to do"),
        ({"minscanlength": "5", "maxscanlength": "4"}, "maxscanlength=4: it is below minscanlength"),
        ({"dataintegrity": "true", "fieldlengthdistribution": "uniform"}, "needs fieldlengthdistribution=constant"),
        ({"exponential.percentile": "100"}, "exponential.percentile=100.0: it is between 0 and 100"),
        ({"keeper.serializer": "json"}, "keeper.serializer=json: it is one of msgpack, raw, pickle"),
        ({"exporter": "Csv"}, "exporter=Csv: it is one of TextMeasurementsExporter"),
    ),
)
def test_a_bad_property_is_refused_with_its_name_and_what_it_takes(properties, says):
    with pytest.raises(BadProperty, match=says.replace("+", r"\+")):
        YcsbSettings.of(properties)


@pytest.mark.parametrize("assignment", ("name", "=value", ""))
def test_an_assignment_has_a_name_and_a_value(assignment):
    with pytest.raises(BadProperty, match="write it as name=value"):
        parse_assignments([assignment])


def test_a_bundled_workload_is_found_by_name_and_by_ycsbs_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_file("workloada") == load_file("workloads/workloada")
    Path("workloada").write_text("recordcount=7")
    assert load_file("workloada") == {"recordcount": "7"}


def test_a_missing_file_is_named_with_what_is_bundled(tmp_path):
    with pytest.raises(
        BadProperty, match=r"nosuch: No such file or directory; bundled are s4thesis, wordcount, worklo"
    ):
        load_file(str(tmp_path / "nosuch"))


@pytest.mark.parametrize("name", bundled_workloads())
def test_every_bundled_workload_makes_sense_and_sets_nothing_unknown(name):
    assert YcsbSettings.of(load_file(name)).ignored.keys() <= {"workload"}
