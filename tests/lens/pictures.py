"""The documentation's pictures, of a page that `loopcd lens --export` wrote: `python tests/lens/pictures.py REPORT.html`"""

import io
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))

from lens.conftest import chromium

FOLDER = Path(__file__).parents[2] / "docs" / "images"


def main(report: Path) -> None:
    shots = [
        ("lens.png", 1360, 1000, "light", ""),
        ("lens-dark.png", 1360, 1000, "dark", 'input[value="lost"]'),
        ("lens-narrow.png", 380, 1240, "light", ""),
    ]
    FOLDER.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        for name, width, height, scheme, first in shots:
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)  # pyright: ignore[reportArgumentType]
            page.goto(report.resolve().as_uri())
            page.wait_for_selector(".token")
            if first:
                page.locator(first).check()
            picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            picture = picture.quantize(256, method=Image.Quantize.MAXCOVERAGE, kmeans=3, dither=Image.Dither.NONE)
            picture.save(FOLDER / name, optimize=True)
            sys.stderr.write(f"{name}: {(FOLDER / name).stat().st_size / 1000:.0f} kB\n")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
