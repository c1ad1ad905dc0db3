"""The measurements of the S4 thesis: read `finding.py`, `figures.py`, `small_writes.py`, `disk_model.py`."""
