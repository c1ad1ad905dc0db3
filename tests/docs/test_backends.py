"""`docs/backends.md` is what the code says: every option of every bundled backend, each with a text."""

from pathlib import Path

import pytest

from safekeeper.options import options_of, page
from safekeeper.registry import BUNDLED, backend_class

PAGE = (Path(__file__).parents[2] / "docs" / "backends.md").read_text()


def test_the_page_is_made_from_the_options_in_the_code():
    assert page() == PAGE, "run `python -m safekeeper.options > docs/backends.md`"


@pytest.mark.parametrize("scheme", BUNDLED)
def test_every_option_says_what_it_is_and_is_on_the_page(scheme):
    found = options_of(backend_class(scheme.replace("objects+", "objects+file")))
    assert found
    for part in found:
        assert part.text
        for option in part.options:
            assert option.text.endswith("."), option
            assert f"- **`{option.name}=`** {option.takes}" in PAGE
