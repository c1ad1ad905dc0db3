"""The bundled backends, one file or folder each. Opened by URL; the table is in `safekeeper.registry`."""
