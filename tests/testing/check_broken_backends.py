"""The kit applied to each class of `broken_backends`. Run by test_kit.py, in a process where their URLs open."""

import broken_backends
import hypothesis
import pytest
from test_kit import SOUND, WITH_A_HOST

from safekeeper.testing import BackendContract

# Finding a mistake is enough here: it is not made smaller, which takes minutes.
hypothesis.settings.register_profile("find", phases=(hypothesis.Phase.generate,), report_multiple_bugs=False)
hypothesis.settings.load_profile("find")


class _Contract(BackendContract):
    @pytest.fixture
    def url(self, tmp_path):
        name = type(self).__name__.removeprefix("Test")
        return f"{name.lower()}://{'server' if name in WITH_A_HOST else ''}{tmp_path}/store"


for _name, _class in vars(broken_backends).items():
    if isinstance(_class, type) and issubclass(_class, broken_backends.FileBackend):
        _more = {"kills": 10} if _name in SOUND else {"kills": 20, "examples": 500}  # it stops at the first mistake
        globals()[f"Test{_name}"] = type(f"Test{_name}", (_Contract,), _more)
