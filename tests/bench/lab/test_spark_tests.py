"""Class files that use other classes than they were compiled for."""

import subprocess

from safekeeper.bench.lab.spark_tests import renamed
from safekeeper.spark.build import find_tool

SOURCES = {
    "Plain": 'class Plain { static Plain make() { return new Plain(); } String says() { return "plain"; } }',
    "Other": 'class Other { static Other make() { return new Other(); } String says() { return "other"; } }',
    "Uses": """
        class Uses {
          static final long LONG = 1L << 40;
          static final double REAL = 0.1;
          static String ask(Plain[] all) { return all[0].says() + LONG + REAL + " Plain"; }
          public static void main(String[] words) {
            Plain made = Plain.make();
            System.out.print(ask(new Plain[] {made}) + new Plain().says());
          }
        }""",
}


def test_a_class_uses_another_one_wherever_it_used_the_first(tmp_path):
    for name, text in SOURCES.items():
        (tmp_path / f"{name}.java").write_text(text)
    subprocess.run([find_tool("javac"), "-proc:none", *(f"{name}.java" for name in SOURCES)], cwd=tmp_path, check=True)

    def says():
        done = subprocess.run([find_tool("java"), "-cp", ".", "Uses"], cwd=tmp_path, capture_output=True, text=True)
        return done.stdout + done.stderr

    assert says() == "plain10995116277760.1 Plainplain"
    file = tmp_path / "Uses.class"
    before = file.read_bytes()
    assert renamed(before, {}) == before
    file.write_bytes(renamed(before, {b"Plain": b"Other"}))
    assert says() == "other10995116277760.1 Plainother"
