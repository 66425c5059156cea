"""Every control of the report, in Chromium; with hostile names on the page, no dialog and no request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsers import chromium
from hostile_names import CLASS

if chromium() is None:
    pytest.skip("no Chromium", allow_module_level=True)  # tests/conftest.py says how to get it
from playwright.sync_api import Browser, Page, sync_playwright


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield found
        found.close()


def opened(browser: Browser, page: Path, **settings: Any) -> Page:
    """The report, ready; a dialog, a request or an error in the page fails the test at `quiet`."""
    tab = browser.new_page(**settings)
    tab.bad = []  # type: ignore[attr-defined]
    bad: list[str] = tab.bad  # type: ignore[attr-defined]
    tab.on("dialog", lambda dialog: (bad.append(f"dialog {dialog.message}"), dialog.dismiss()))
    tab.on("pageerror", lambda error: bad.append(f"error {error}"))
    tab.on("console", lambda message: bad.append(message.text) if message.type in ("error", "warning") else None)
    tab.on(
        "request", lambda request: bad.append(request.url) if not request.url.startswith(("file:", "data:")) else None
    )
    tab.goto(page.as_uri())
    tab.wait_for_selector("html[data-ready]")
    return tab


@pytest.fixture
def tab(browser: Browser, page: Path) -> Iterator[Page]:
    found = opened(browser, page, viewport={"width": 1440, "height": 900})
    yield found
    assert not found.bad  # type: ignore[attr-defined]
    found.close()


def count(tab: Page) -> int:
    return int(tab.inner_text("#count").split()[0])


def test_categories_are_ordered_filtered_and_searched(tab: Page) -> None:
    names = lambda: tab.locator("#cards h3").all_inner_texts()  # noqa: E731
    assert names()[0].endswith("new-01") and len(names()) == 3
    tab.select_option("#kind", "known")
    assert len(names()) == 2 and not any("new-01" in name for name in names())
    tab.select_option("#kind", "all")
    tab.select_option("#order", "name")
    assert [name.split(" ", 1)[1] for name in names()] == [CLASS, "dog", "new-01"]
    tab.fill("#named", "DOG")
    assert [name.split(" ", 1)[1] for name in names()] == ["dog"]
    tab.fill("#named", "u20.png")  # the file of one image finds its category
    assert len(names()) == 1
    tab.fill("#named", "nothing")
    assert names() == [] and "no categories" in tab.inner_text("#cards")


def test_a_card_opens_its_parts_and_pages(tab: Page) -> None:
    card = tab.locator("#category-2")
    more = card.get_by_role("button", name="All images")
    more.click()
    tiles = card.locator(".below .tile")
    total = int(more.inner_text().split("(")[1].rstrip(")"))
    assert tiles.count() == min(48, total) and more.get_attribute("aria-pressed") == "true"
    if total > 48:
        card.get_by_role("button", name="Next").click()
        assert tiles.count() == total - 48
    more.click()
    assert tiles.count() == 0
    tab.locator("#category-1").get_by_role("button", name="Labelled").click()
    assert tab.locator("#category-1 .below .tile").count() == 5


def test_gallery_and_map_are_linked_both_ways(tab: Page) -> None:
    tab.locator("#category-2").get_by_role("button", name="Show on map").click()
    assert "new-01 is highlighted" in tab.inner_text("#says")
    tab.click("#clear")
    assert tab.inner_text("#says") == ""
    tab.locator("#canvas").focus()
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("Enter")
    assert tab.locator("#viewer").is_visible()
    shown = tab.inner_text("#viewer dd >> nth=0")
    tab.locator("#viewer").get_by_role("button", name="In the gallery").click()
    assert not tab.locator("#viewer").is_visible()
    tile = tab.locator(".below .tile.here")
    assert tile.get_attribute("title") == shown
    tile.click()
    tab.locator("#viewer").get_by_role("button", name="On the map").click()
    assert shown in tab.inner_text("#says")
    tab.keyboard.press("Escape")


def test_a_point_is_shown_on_hover_and_opened_by_a_click(tab: Page) -> None:
    box = tab.locator("#canvas").bounding_box()
    assert box is not None
    x, y = tab.evaluate("() => { const a = map.scale(), i = map.points[0]; return [a.x(i), a.y(i)]; }")
    tab.locator("#canvas").hover(position={"x": x, "y": y})
    assert tab.locator("#tip img").is_visible()
    tab.locator("#canvas").click(position={"x": x, "y": y})
    assert tab.locator("#viewer").is_visible()
    tab.keyboard.press("Escape")
    assert not tab.locator("#viewer").is_visible()
    assert tab.locator(".tile.here").count() >= 0


def test_a_box_on_the_map_filters_the_table(tab: Page) -> None:
    assert count(tab) == 70
    canvas = tab.locator("#canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    tab.mouse.move(box["x"] + 2, box["y"] + 2)
    tab.mouse.down()
    tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] - 2, steps=4)
    tab.mouse.up()
    inside = tab.evaluate("() => state.box.length")
    assert 0 < inside < 70 and count(tab) == inside
    tab.click("#reset")
    assert count(tab) == 70 and not tab.locator("#reset").is_visible()


def test_the_histogram_filters_the_table(tab: Page) -> None:
    tab.select_option("#measure", "confidence")
    bars = tab.locator(".bin")
    assert bars.count() == 20
    said = [bars.nth(i).get_attribute("aria-label") or "" for i in range(20)]
    numbers = [sum(int(word) for word in text.split(": ")[1].split() if word.isdigit()) for text in said]
    assert sum(numbers) == 70
    full = max(range(20), key=numbers.__getitem__)
    bars.nth(full).focus()
    tab.keyboard.press("Enter")
    assert count(tab) == numbers[full] and bars.nth(full).get_attribute("aria-pressed") == "true"
    tab.keyboard.press("Enter")
    assert count(tab) == 70


def test_the_table_is_searched_filtered_sorted_and_paged(tab: Page) -> None:
    rows = tab.locator("#table tbody tr")
    assert rows.count() == 50
    tab.locator("#table").get_by_role("button", name="Next").click()
    assert rows.count() == 20
    tab.fill("#search", "onerror")
    assert count(tab) >= 1 and "onerror" in rows.nth(0).inner_text()
    tab.fill("#search", "")
    tab.select_option("#only", "known")
    known = count(tab)
    tab.select_option("#only", "new")
    assert known + count(tab) == 70
    tab.select_option("#only", "twins")
    assert count(tab) >= 2
    tab.select_option("#only", "")
    tab.select_option("#of", "1")
    assert set(tab.locator("#table tbody tr td:nth-child(3)").all_inner_texts()) <= {
        "dog",
        "dog group 1",
        "dog group 2",
    }
    tab.select_option("#of", "")
    tab.click("#table [data-column=confidence]")
    values = [float(text) for text in tab.locator("#table tbody tr td:nth-child(5)").all_inner_texts()]
    assert values == sorted(values, reverse=True)
    tab.click("#table [data-column=confidence]")
    assert tab.locator("#table th[aria-sort=ascending]").inner_text().startswith("confidence")
    rows.nth(0).locator(".tile").click()
    first = tab.inner_text("#viewer dd >> nth=0")
    tab.keyboard.press("ArrowRight")
    assert tab.inner_text("#viewer dd >> nth=0") != first
    tab.locator("#viewer").get_by_role("button", name="Close").click()


def test_light_and_dark_and_colours_of_the_map(tab: Page) -> None:
    background = "() => getComputedStyle(document.body).backgroundColor"
    before = tab.evaluate(background)
    tab.click("#theme")
    assert tab.evaluate(background) != before
    tab.click("#theme")
    assert tab.evaluate(background) == before
    pixels = "() => document.getElementById('canvas').toDataURL()"
    by_kind = tab.evaluate(pixels)
    tab.select_option("#colour", "confidence")
    assert tab.evaluate(pixels) != by_kind


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_needs_no_sideways_scrolling(browser: Browser, page: Path, scheme: Any) -> None:
    tab = opened(browser, page, viewport={"width": 390, "height": 800}, color_scheme=scheme)
    assert tab.evaluate("() => document.documentElement.scrollWidth") <= 390
    labels = """() => {
      const table = document.createElement("table");
      table.className = "narrow"; // as the labels that look wrong, which this run has none of
      for (const cell of ["th", "td"]) {
        const row = table.insertRow();
        for (let i = 0; i < 5; i++) row.append(Object.assign(document.createElement(cell), { textContent: "a_long_name_".repeat(6) }));
      }
      document.querySelector("main").append(table);
      return table.getBoundingClientRect().right;
    }"""
    assert tab.evaluate(labels) <= 390
    assert not tab.bad  # type: ignore[attr-defined]
    tab.close()
