"""Pictures are the same wherever they are drawn: nothing of the environment reaches Textual.

Its constants are read when it is imported, so this comes before everything else. The pictures belong to one version of
Python and of Textual: elsewhere they are not compared, and never rewritten.
"""

from __future__ import annotations

import os
import sys

for _name in ("NO_COLOR", "TEXTUAL_THEME", "TEXTUAL_FILTERS", "TEXTUAL_DIM_FACTOR", "TEXTUAL_COLOR_SYSTEM"):
    os.environ.pop(_name, None)
os.environ["TEXTUAL_ANIMATIONS"] = "none"

import pytest  # noqa: E402
import textual  # noqa: E402

BASELINE = ((3, 11), "8.2.8")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if (sys.version_info[:2], textual.__version__) == BASELINE:
        return
    skip = pytest.mark.skip(reason=f"pictures are those of Python {BASELINE[0]} and Textual {BASELINE[1]}")
    for item in items:
        if "snap_compare" in getattr(item, "fixturenames", ()):
            item.add_marker(skip)
