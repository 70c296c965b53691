"""The screenshot of a report in the README: `python docs/picture.py REPORT.html` writes docs/report.png.

It needs Chromium, which is driven as in the tests. The picture is the first screen, in few colours to limit its size.
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
    top.quantize(64, Image.Quantize.MAXCOVERAGE).save(ROOT / "docs" / "report.png", optimize=True)


if __name__ == "__main__":
    main(sys.argv[1])
