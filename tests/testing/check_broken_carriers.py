"""The kit applied to each class of `broken_carriers`. Run by test_stream_kit.py, in a process where their URLs open."""

import broken_carriers
import hypothesis
import pytest

from safekeeper.testing import StreamContract

# Finding a mistake is enough here: it is not made smaller, which takes minutes.
hypothesis.settings.register_profile("find", phases=(hypothesis.Phase.generate,), report_multiple_bugs=False)
hypothesis.settings.load_profile("find")


class _Contract(StreamContract):
    @pytest.fixture(autouse=True)
    def _impatient(self, monkeypatch):
        """Those that are broken never come to an end."""
        if not isinstance(self, globals()["TestSoundCarrier"]):
            for module in ("sending", "streams"):
                monkeypatch.setattr(f"safekeeper.testing.{module}.PATIENCE", 2.0)

    @pytest.fixture
    def url(self, request, tmp_path):
        scheme = type(self).__name__.removeprefix("Test").lower()
        store = f"log://{tmp_path}/store" if "killed" in request.node.name else f"memory:{tmp_path}"
        return f"{scheme}:{store}?stream=words"


for _name, _class in vars(broken_carriers).items():
    if isinstance(_class, type) and issubclass(_class, broken_carriers.SoundCarrier):
        _more = (
            {"kills": 2} if _name == "SoundCarrier" else {"kills": 5, "examples": 5_000}
        )  # it stops at the first mistake
        globals()[f"Test{_name}"] = type(f"Test{_name}", (_Contract,), _more)
