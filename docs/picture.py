"""The picture of a report in the README, made anew: `python docs/picture.py REPORT.html` writes docs/report.png.

Needs Chromium, driven as by the tests. The first screen, in few colours, so that it stays small.
"""

import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.answers.chromium import render_page  # noqa: E402

HEIGHT = 1150


def main(report: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        render_page(Path(report).resolve(), "document.title", ("desktop",), Path(folder))
        picture = Image.open(Path(folder) / "desktop.png").convert("RGB")
    top = picture.crop((0, 0, picture.width, min(HEIGHT, picture.height)))
    top.quantize(64).save(ROOT / "docs" / "report.png", optimize=True)


if __name__ == "__main__":
    main(sys.argv[1])
