"""Take the screenshots in docs/images from a demo model (`make demo`) and the embedded catalogue.

.venv/bin/python scripts/screenshots.py [MODEL]
"""

import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
ITEM = "openclipart:food/desserts/pie_pumpkin"  # its first three labels are right
LABEL = "q1905"  # dessert
DESKTOP, PHONE = {"width": 1400, "height": 880}, {"width": 390, "height": 844}
# name: (address, element to wait for, window size, colour scheme)
SCREENSHOTS: dict[str, tuple[str, str, dict[str, int], str]] = {
    "page": (f"#/ask?item={ITEM}&label={LABEL}", "#panel .tiles", DESKTOP, "light"),
    "page-dark": (f"#/ask?item={ITEM}&label={LABEL}", "#panel .tiles", DESKTOP, "dark"),
    "page-map": ("#/map", ".in-view button", DESKTOP, "light"),
    "page-phone": (f"#/ask?item={ITEM}", ".hit", PHONE, "light"),
}


@contextmanager
def served(model: Path) -> Iterator[str]:
    """Serve a copy of the model, since the server stores a map in its folder; yield the address."""
    import uvicorn

    from mufin.serve.app import build_app, build_service, listen
    from mufin.serve.schemas import Settings

    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "demo")
        shutil.copytree(model, copy)
        from mufin import demo

        service = build_service(copy, Path(str(demo.__file__)).parent, Settings())
        listener = listen("127.0.0.1", 0)
        server = uvicorn.Server(uvicorn.Config(build_app(service), log_config=None))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        while not server.started:
            time.sleep(0.05)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join()


def shrink(png: Path) -> None:
    """Reduce the image to 256 colours: a third of the size, no visible difference."""
    from PIL import Image

    with Image.open(png) as image:
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(png, optimize=True)


def take(browser: Any, address: str) -> None:
    """Take all screenshots."""
    for name, (view, ready, size, colours) in SCREENSHOTS.items():
        page = browser.new_page(
            viewport=size, color_scheme=colours, reduced_motion="reduce", has_touch=size is PHONE,
            is_mobile=size is PHONE,
        )  # fmt: skip
        page.goto(address + view)
        page.locator(ready).first.wait_for(timeout=120_000)
        page.reload()  # the first query takes longer
        page.locator(ready).first.wait_for(timeout=120_000)  # computing the map takes long the first time
        page.wait_for_load_state("networkidle")
        page.wait_for_timeout(400)
        if ITEM in view:
            relevant = page.locator(".hits > li").evaluate_all("all => all.map((hit) => hit.className)")
            assert relevant[:3] == ["relevant"] * 3, f"the first labels of {ITEM} are not all right"
        page.screenshot(path=IMAGES / f"{name}.png")
        page.close()
        shrink(IMAGES / f"{name}.png")
        print(f"{name}.png: {(IMAGES / f'{name}.png').stat().st_size // 1024} KB")


def main() -> None:
    """Serve the model and take all screenshots."""
    from playwright.sync_api import sync_playwright

    model = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo")
    with served(model) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        take(browser, address)
        browser.close()


if __name__ == "__main__":
    main()
