"""`make bench`: every table, on a machine that does nothing else.

    python -m tests.bench [DIRECTORY]

DIRECTORY lies on the disk to be measured; by default the system's place for temporary files.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.bench import disk_speed, prepare_speed, start_speed, step_speed
from tests.bench.table import show


def main() -> None:
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as name:
        for title, part in (
            ("The disk", disk_speed),
            ("The loop", step_speed),
            ("Starting", start_speed),
            ("Preparing", prepare_speed),
        ):
            place = Path(name) / part.__name__
            place.mkdir()
            show(title, part.measure(place))


if __name__ == "__main__":
    main()
