"""Files in any backend for whatever speaks fsspec; needs `pip install 'safekeeper[fsspec]'`.

import fsspec

fs = fsspec.filesystem("safekeeper", store="log:///var/lib/files")
fs.pipe("safekeeper://main/greeting", b"hello")
"""

from safekeeper.integrations.filesystem.fs import SafekeeperFileSystem

__all__ = ["SafekeeperFileSystem"]
