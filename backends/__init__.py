"""The bundled backends: one file or one folder each. `shared/` is not a backend but what several of them use.

In a folder, `backend.py` has the class, `options.py` what may stand in the URL, `errors.py` how the driver's errors
become ours, `layout.py` the names and bytes in the store; `__init__.py` says what the backend is and in which order to
read it. No backend imports another, nor anything above the contract (`tox -e lint` checks it).
They are opened by URL: the table is in `safekeeper.registry`.
"""
