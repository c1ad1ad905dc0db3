"""Files in any backend. `docs/file-systems.md` is the layout with its rules; `layout.py` has its bytes, `volume.py` the
rules, `fs.py` is what fsspec sees of it."""
