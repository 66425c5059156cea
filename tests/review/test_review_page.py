"""The whole way through a review, in Chromium: select, name, merge, split, undo, redo, reload, a second window, keys alone."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
from browsers import chromium
from hostile_names import BAD
from served import Serve, Served
from tiers import tiered

if chromium() is None:
    pytest.skip("no Chromium", allow_module_level=True)  # tests/conftest.py says how to get it
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright


@pytest.fixture(scope="module")
def server(serve: Serve) -> Served:
    return serve()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield found
        found.close()


def opened(browser: Browser, server: Served, **settings: Any) -> Page:
    """The page, ready and with features; a dialog, an error or a request elsewhere is noted in `bad`."""
    tab = browser.new_page(**settings)
    tab.set_default_timeout(60_000)  # features come from another process, which has to start
    tab.bad = []  # type: ignore[attr-defined]
    bad: list[str] = tab.bad  # type: ignore[attr-defined]
    tab.on("dialog", lambda dialog: (bad.append(f"dialog {dialog.message}"), dialog.dismiss()))
    tab.on("pageerror", lambda error: bad.append(f"error {error}"))
    tab.on("console", lambda message: bad.append(message.text) if message.type in ("error", "warning") else None)
    here = server.url.partition("?")[0]
    tab.on("request", lambda request: None if request.url.startswith(here) else bad.append(request.url))
    tab.goto(server.url)
    tab.wait_for_selector("html[data-ready]")
    tab.wait_for_function("() => state.features && state.similarity")
    return tab


@pytest.fixture
def tab(browser: Browser, server: Served) -> Iterator[Page]:
    """Each test begins with nothing done, because it undoes all."""
    found = opened(browser, server, viewport={"width": 1440, "height": 900})
    yield found
    while found.evaluate("() => !document.getElementById('undo').disabled"):
        found.evaluate("() => send('/api/undo', {})")
    assert not found.bad  # type: ignore[attr-defined]
    found.close()


def saved(tab: Page) -> None:
    tab.wait_for_function("() => queue.then(() => document.getElementById('saved').textContent === 'saved')")


def counts(tab: Page) -> dict[str, int]:
    """Images per category, by what it is called."""
    script = "() => Object.fromEntries(shownCategories().map((c) => [name(c), state.members[c].length]))"
    found: dict[str, int] = tab.evaluate(script)
    return found


def log(server: Served) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (server.run / "decisions.jsonl").read_text("utf-8").splitlines()]


# where images are, as soon as all of them are drawn: the grid may just be drawn again
BOXES = """(images) => {
    const found = images.map((i) => document.getElementById(`image-${i}`)?.getBoundingClientRect());
    return found.every((box) => box?.width) && found.map((box) => ({x: box.x, y: box.y}));
}"""


def test_the_whole_way(tab: Page, browser: Browser, server: Served, command: Callable[..., Any]) -> None:
    assert "token" not in tab.url
    before = counts(tab)
    assert sum(before.values()) == 60
    first = tab.evaluate("() => grid.sections[0].items")
    assert len(first) > 3
    # a box around the first two images, then one name for both
    boxes = tab.wait_for_function(BOXES, arg=first[:2]).json_value()
    tab.mouse.move(boxes[0]["x"] + 4, boxes[0]["y"] - 2)
    tab.mouse.down()
    tab.mouse.move(boxes[1]["x"] + 30, boxes[1]["y"] + 40, steps=5)
    tab.mouse.up()
    assert tab.inner_text("#says").startswith("2 images selected")
    tab.keyboard.press("n")
    tab.keyboard.type("lynx")
    tab.keyboard.press("Enter")
    saved(tab)
    assert counts(tab)["lynx"] == 2 and tab.evaluate("() => state.selected.size") == 0
    assert [line["act"] for line in log(server)[-2:]] == ["move", "name"]
    # a second window sees it, and its own act is seen here
    other = opened(browser, server, viewport={"width": 900, "height": 700})
    assert counts(other)["lynx"] == 2
    other.evaluate("() => goTo(shownCategories().find((c) => name(c) === 'dog'))")
    other.keyboard.press("a")
    saved(other)
    tab.wait_for_function("() => state.categories.some((one) => one.id === 'dog' && one.status === 1)")
    other.close()
    # merge the new category into a known class: names complete as one types
    tab.evaluate("() => goTo(shownCategories().find((c) => name(c) === 'lynx'))")
    tab.keyboard.press("m")
    tab.keyboard.type("do")
    assert "dog" in tab.inner_text("#options [aria-selected=true]")
    tab.keyboard.press("Enter")
    saved(tab)
    assert "lynx" not in counts(tab) and counts(tab)["dog"] == before["dog"] + 2
    # undo, redo, reload
    tab.keyboard.press("u")
    saved(tab)
    assert counts(tab)["lynx"] == 2
    tab.keyboard.press("Shift+U")
    saved(tab)
    assert "lynx" not in counts(tab)
    after = counts(tab)
    tab.reload()
    tab.wait_for_selector("html[data-ready]")
    assert counts(tab) == after
    # what the reviewer made of it is what is exported
    out = server.run.parent / "out.csv"
    assert command("export", server.run, "--to", "csv", "-o", out, "--force").code == 0
    with open(out, encoding="utf-8", newline="") as file:
        exported = [row["id"] for row in csv.DictReader(file) if row["confidence"]]
    assert exported.count("dog") == after["dog"]


def test_a_split_is_shown_before_it_is_done(tab: Page, server: Served) -> None:
    before = counts(tab)
    largest = max(before, key=before.__getitem__)
    tab.evaluate("(called) => goTo(shownCategories().find((c) => name(c) === called))", largest)
    lines = len(log(server))
    tab.keyboard.press("s")
    tab.wait_for_selector("#preview section >> nth=1")
    assert len(log(server)) == lines
    tab.keyboard.press("ArrowRight")  # three parts
    tab.wait_for_selector("#preview section >> nth=2")
    tab.wait_for_selector("#accept-split:enabled")
    tab.keyboard.press("Enter")
    saved(tab)
    parts = {name: count for name, count in counts(tab).items() if name not in before}
    assert len(parts) == 2 and counts(tab)[largest] + sum(parts.values()) == before[largest]
    tab.keyboard.press("u")
    saved(tab)
    assert counts(tab) == before


def test_selecting_moving_and_one_undo_for_one_deed(tab: Page) -> None:
    items = tab.evaluate("() => grid.sections[0].items")
    tab.click(f"#image-{items[0]}")
    tab.click(f"#image-{items[3]}", modifiers=["Shift"])
    assert tab.evaluate("() => state.selected.size") == 4
    tab.evaluate("() => grid.refresh()")  # rows that come into sight again show what is selected
    assert tab.locator(".cell[aria-selected=true]").count() == 4
    tab.click(f"#image-{items[1]}", modifiers=["Control"])
    assert tab.evaluate("() => state.selected.size") == 3
    before = counts(tab)
    tab.keyboard.press("v")
    tab.keyboard.type("fox")
    tab.keyboard.press("Enter")
    saved(tab)
    assert counts(tab)["fox"] == 3
    tab.keyboard.press("Control+z")
    saved(tab)
    assert counts(tab) == before
    tab.keyboard.press("Control+y")
    saved(tab)
    assert counts(tab)["fox"] == 3
    # a name that is taken is a place to move to, never a second category of that name
    tab.evaluate("() => select([grid.sections[0].items[0]], 'one')")
    tab.keyboard.press("n")
    tab.keyboard.type("fox")
    tab.keyboard.press("Enter")
    saved(tab)
    assert counts(tab)["fox"] == 4


def test_without_a_selection_a_key_is_about_what_is_in_sight(tab: Page) -> None:
    tab.set_viewport_size({"width": 760, "height": 480})
    first = tab.evaluate("() => name(shownCategories()[0])")
    tab.evaluate("() => goTo(shownCategories()[0])")
    assert tab.inner_text("#says").startswith(f"{first}:")
    tab.evaluate("() => { grid.scroller.scrollTop = 1e6; }")
    tab.wait_for_function("() => state.cursor === grid.firstInSight()")
    here = tab.evaluate("() => name(current())")
    assert here != first and tab.inner_text("#says").startswith(f"{here}:")
    box = tab.locator(".cell.here").bounding_box()
    assert box and 0 < box["y"] < 480
    for _ in range(3):  # in another order other images of the same category are in sight
        tab.keyboard.press("o")
        tab.wait_for_function("() => grid.inSight(state.cursor)")
        assert tab.evaluate("() => name(current())") == here
    assert tab.inner_text(".headline.here strong").endswith(here)
    tab.keyboard.press("n")
    assert tab.inner_text("#asks") == f"Name {here}"
    tab.keyboard.press("Escape")
    tab.fill("#find", first)
    assert tab.inner_text("#says").startswith(f"{first}:")
    tab.fill("#find", "")
    # a window of another shape still shows what the next key is about
    tab.set_viewport_size({"width": 1440, "height": 900})
    tab.evaluate("() => { goTo(shownCategories().at(-1)); moveCursor(grid.sections.at(-1).items.at(-1)); }")
    here = tab.evaluate("() => state.cursor")
    tab.set_viewport_size({"width": 390, "height": 844})
    tab.wait_for_function("() => grid.columns < 5 && grid.inSight(state.cursor)")
    assert tab.evaluate("() => state.cursor") == here


def test_of_files_that_are_found_an_act_is_about_these(tab: Page) -> None:
    path = tab.evaluate("() => state.about.path[state.members[shownCategories()[0]][3]]")
    tab.fill("#find", path.upper())
    shown = tab.evaluate("() => grid.sections.map((one) => one.items.map((image) => state.about.path[image]))")
    assert shown == [[path]] and " 1 of " in tab.inner_text("#says")
    tab.press("#find", "Enter")
    tab.keyboard.press("r")
    saved(tab)
    rejected = tab.evaluate("() => state.about.path.filter((_, image) => state.status[image] === 2)")
    assert rejected == [path]
    tab.fill("#find", "")
    tab.select_option("#show", "rejected")  # what is opened again is what was rejected, not its category
    assert " 1 of " in tab.inner_text("#says")
    tab.press("#grid", "r")
    saved(tab)
    assert tab.evaluate("() => state.status.every((one) => one === OPEN)")
    tab.select_option("#show", "all")


def test_a_selection_that_is_out_of_sight_is_shown_before_it_is_judged(tab: Page) -> None:
    tab.set_viewport_size({"width": 760, "height": 480})
    tab.evaluate("() => { goTo(shownCategories()[0]); select(grid.sections[0].items.slice(0, 2), 'one'); }")
    tab.evaluate("() => goTo(shownCategories().at(-1))")
    before = tab.evaluate("() => state.version")
    tab.keyboard.press("a")
    assert "2 images are selected" in tab.inner_text("#toast") and tab.evaluate("() => state.version") == before
    assert tab.evaluate("() => [...state.selected].some((image) => grid.inSight(image))")
    tab.keyboard.press("a")
    saved(tab)
    assert tab.evaluate("() => [...state.status].filter((one) => one === ACCEPTED).length") == 2


STRIPS = """() => [...document.querySelectorAll('#chooser figure')].map(
  (one) => [...one.querySelectorAll('img')].map((image) => Number(image.src.match(/thumb.([0-9]+)/)[1])))"""


def test_the_naming_dialog_shows_whom_it_names(tab: Page, server: Served) -> None:
    tab.wait_for_function("() => suggested.version === state.version")
    # of every six images one is not probable, and one is not kept together with its category by other clusterings
    tab.evaluate(
        """() => { state.about.confidence = state.about.confidence.map((_, i) => (i % 6 ? 900 : 500));
          state.certain = state.about.confidence.map((_, i) => (i % 6 === 3 ? "0" : "1")).join(""); }"""
    )
    c = tab.evaluate("() => shownCategories().find((c) => !known(c) && state.members[c].length > 12)")
    tab.evaluate("(c) => goTo(c)", c)
    images = tab.evaluate(
        "(c) => [...state.members[c]].sort((a, b) => state.about.lead[a] - state.about.lead[b] || a - b)", c
    )
    certain = {image for image in images if image % 3}
    tab.keyboard.press("n")
    assert f"most typical of {len(images)} images" in tab.inner_text("#chooser .about")
    assert tab.evaluate(STRIPS)[1] == images[:6]
    tab.locator("#chooser .scope input").nth(1).check()
    assert all(set(strip) <= certain for strip in tab.evaluate(STRIPS))
    tab.fill("#text", "owl")
    tab.keyboard.press("Enter")
    saved(tab)
    statuses = tab.evaluate("(images) => images.map((image) => state.status[image])", images)
    assert [image for image, status in zip(images, statuses, strict=True) if status == 1] == [
        image for image in images if image in certain
    ]
    assert [line["act"] for line in log(server)[-2:]] == ["name", "reopen"]
    tab.keyboard.press("n")  # a second name changes nothing but the name
    assert tab.locator("#chooser .scope input").count() == 0
    tab.keyboard.press("Escape")
    tab.keyboard.press("a")  # and accepting the category accepts the others, too
    saved(tab)
    assert set(tab.evaluate("(images) => images.map((image) => state.status[image])", images)) == {1}
    tab.keyboard.press("u")
    saved(tab)
    tab.keyboard.press("u")  # name and exception are one deed
    saved(tab)
    assert set(tab.evaluate("() => [...state.status]")) == {0}
    # with a part selected, the part alone comes first
    tab.evaluate("(images) => select(images, 'one')", images[:2])
    tab.keyboard.press("n")
    assert tab.inner_text("#chooser .about figcaption") == "2 images"
    tab.fill("#text", "hawk")
    tab.keyboard.press("Enter")
    saved(tab)
    assert counts(tab)["hawk"] == 2


def test_a_suggestion_stands_there_and_is_done_with_one_key(tab: Page, server: Served) -> None:
    tab.wait_for_function("() => suggested.version === state.version")
    told = server.json("/api/suggestions")
    assert told["suggestions"] == tab.evaluate("() => suggested.list.map(({ sizes, ...one }) => one)")
    # and how far each category is to be trusted, and which images are certain
    trust = dict(zip(tab.evaluate("() => state.categories.map((one) => one.id)"), told["trust"], strict=True))
    assert all(value is None or 0 < value < 1 for value in trust.values()) and set(trust.values()) != {None}
    first = tab.evaluate("() => state.categories[shownCategories()[0]].id")
    said = tab.inner_text(".headline >> nth=0")
    assert ("nearly all" if trust[first] >= 0.95 else f"about {trust[first] * 10:.0f} in 10") in said
    assert len(told["certain"]) == 60 and set(told["certain"]) <= {"0", "1"}
    # one of each kind, whatever the features of this run suggest
    made = """() => {
      const [a, b] = shownCategories().filter((c) => !known(c)), images = state.members[b].slice(0, 4);
      const { trust, certain, version } = state;
      takeSuggestions({ version, trust, certain, suggestions: [
        { kind: "merge", categories: [b, a], probability: 0.9 }, { kind: "split", categories: [b], probability: 0.8, images }] });
      return [name(a), name(b), state.members[a].length, state.members[b].length];
    }"""
    a, b, first, second = tab.evaluate(made)
    assert (
        tab.inner_text("#suggestion strong") == f"{a} and {b} may be one: {first} + {second}"
    )  # the larger one lives on
    assert "right in about 9 of 10" in tab.inner_text("#suggestion small")
    assert tab.locator("#suggestion img").count() == 10
    before = counts(tab)
    tab.keyboard.press("y")
    saved(tab)
    assert counts(tab)[a] == first + second and log(server)[-1]["act"] == "merge"
    assert "belong together" not in tab.inner_text(f".headline:has-text('{a}') >> nth=0") or tab.evaluate(
        "() => suggested.version === state.version"
    )  # what was said is not true of what it is now
    tab.keyboard.press("u")
    saved(tab)
    assert counts(tab) == before
    tab.evaluate(made)
    tab.keyboard.press("x")
    assert tab.inner_text("#suggestion strong") == f"{b} looks like two: {second - 4} + 4"
    tab.click("#yes")
    saved(tab)
    assert counts(tab)[b] == second - 4 and log(server)[-1]["act"] == "split"
    # what is suggested next is about the categories as they are now
    tab.wait_for_function("() => suggested.version === state.version")
    assert tab.evaluate("() => unanswered().every((one) => one.categories.every((c) => state.members[c].length))")


DOUBT = """() => {
  const other = Object.keys(state.about.examples).find((id) => id !== "dog"), images = state.members[current()].slice(0, 2);
  const { trust, certain, version } = state;
  takeSuggestions({ version, trust, certain, suggestions: [{ kind: "split", categories: [current()], probability: 0.8, images }],
    doubts: [{ image: state.about.examples.dog[0], label: "dog", neighbours: other, certainty: 0.9 }] });
}"""


def test_a_label_that_looks_wrong_is_corrected_and_taken_back(tab: Page, server: Served) -> None:
    tab.wait_for_function("() => suggested.version === state.version")
    assert [one["image"] for one in server.json("/api/suggestions")["doubts"]] == tab.evaluate(
        "() => suggested.doubts.map((one) => one.image)"
    )
    tab.evaluate(DOUBT)
    image, path = tab.evaluate("() => [suggested.doubts[0].image, state.about.path[suggested.doubts[0].image]]")
    assert image >= 60 and tab.evaluate("(image) => state.about.label[image]", image) == "dog"
    assert tab.inner_text("#doubts") == "1 label looks wrong"
    tab.click("#doubts")
    tab.locator("#labels li img >> nth=0").wait_for()
    tab.click("#labels button.main")
    saved(tab)
    line = log(server)[-1]
    assert (line["act"], line["to"]) == (
        "label",
        tab.evaluate("() => Object.keys(state.about.examples).find((id) => id !== 'dog')"),
    )
    assert line["images"][0].endswith(path)
    tab.keyboard.press("Escape")
    tab.keyboard.press("u")
    saved(tab)
    assert log(server)[-1]["act"] == "undo"
    status, _, content = server.ask("POST", "/api/act", b'{"act": "label", "images": [0], "to": "dog"}')
    assert status == 409 and b"labelled images" in content  # the first image has no label


def test_the_close_up_says_what_an_image_is_like(tab: Page) -> None:
    image = tab.evaluate("() => grid.sections[0].items[0]")
    tab.evaluate("(image) => view(image)", image)
    tab.wait_for_selector(".why figure >> nth=2")
    found = tab.evaluate("(image) => ask('/api/why', { images: [image], rival: state.about.second[image] })", image)
    count, category = tab.evaluate("(image) => [state.category.length, state.members[state.category[image]]]", image)
    assert all(other >= count for other, _ in found["labelled"])
    assert image not in dict(found["own"]) and set(dict(found["own"])) <= set(category)
    for near in found.values():
        assert [cosine for _, cosine in near] == sorted((cosine for _, cosine in near), reverse=True)
    assert tab.inner_text(".why .near small >> nth=0") == f"{found['labelled'][0][1] / 1000:.2f}"
    tab.wait_for_function("() => document.querySelector('.where img').naturalWidth > 0")
    for _ in range(2):  # the keys go on after the first one
        before = tab.inner_text("#viewer dd >> nth=0")
        tab.keyboard.press("ArrowRight")
        assert tab.inner_text("#viewer dd >> nth=0") != before
    tab.keyboard.press("Escape")


def test_keys_alone_are_enough(tab: Page, server: Served) -> None:
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("Space")
    tab.keyboard.press("Shift+ArrowRight")
    assert tab.evaluate("() => state.selected.size") == 2
    tab.keyboard.press("r")
    saved(tab)
    assert tab.evaluate("() => state.status.filter((status) => status === 2).length") == 2
    assert tab.locator(".cell.s2").count() == 2
    tab.wait_for_function("() => state.features")
    tab.keyboard.press("d")
    tab.wait_for_function("() => state.teach.length")
    doubtful = tab.evaluate("() => state.cursor")
    asked, status = tab.evaluate("() => [state.teach, [...state.status]]")
    assert doubtful == asked[0] and len(set(asked)) == 30 and all(status[image] == 0 for image in asked)
    tab.keyboard.press("a")
    saved(tab)
    assert tab.evaluate("(image) => state.status[image]", doubtful) == 1
    assert tab.inner_text("#reviewed") == "3 of 60 images reviewed"
    tab.keyboard.press("d")
    assert tab.evaluate("() => state.cursor") != doubtful
    tab.keyboard.press("k")
    tab.keyboard.press("Enter")
    saved(tab)
    assert log(server)[-1]["act"] == "move" and log(server)[-1]["to"] in server.json("/api/about")["examples"]
    tab.keyboard.press("?")
    assert "label next" in tab.inner_text("#keys")
    tab.keyboard.press("Escape")
    tab.keyboard.press("Enter")
    tab.wait_for_function("() => document.querySelector('#viewer img').naturalWidth > 0")
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("Escape")
    tab.keyboard.press("/")
    tab.keyboard.type("dog")
    tab.keyboard.press("Enter")
    assert tab.evaluate("() => name(current())") == "dog"
    tab.keyboard.press("Escape")
    for order in ("doubt", "novelty", "similarity"):
        tab.keyboard.press("o")
        assert tab.evaluate("() => document.getElementById('order').value") == order
    tab.keyboard.press("l")
    tab.wait_for_selector("#alike")
    assert tab.evaluate("() => state.selected.size") > 1
    tab.evaluate(
        "() => { const s = document.getElementById('alike'); s.value = s.min; s.dispatchEvent(new Event('input')); }"
    )
    assert tab.evaluate("() => state.selected.size") == 60
    tab.keyboard.press("Escape")
    assert tab.evaluate("() => state.like === null && state.selected.size === 0")


def test_hostile_names_are_text(tab: Page) -> None:
    tab.evaluate("() => goTo(shownCategories().find((c) => !known(c)))")
    tab.keyboard.press("n")
    tab.keyboard.type(f"{BAD}</script>")
    tab.keyboard.press("Enter")
    saved(tab)
    assert f"{BAD}</script>" in (tab.text_content("#list") or "") and tab.locator("[onerror]").count() == 0
    image = tab.evaluate("() => state.about.path.findIndex((path) => path.includes('onerror'))")
    tab.evaluate("(image) => view(image)", image)
    assert "onerror" in tab.inner_text("#viewer dd >> nth=0")


def test_what_the_server_refuses_is_said_and_changes_nothing(tab: Page) -> None:
    before = counts(tab)
    bad: list[str] = tab.bad  # type: ignore[attr-defined]
    tab.evaluate("() => send('/api/act', { act: 'merge', categories: ['dog'], into: 'new-01' })")
    assert "known class" in tab.inner_text("#toast") and tab.inner_text("#saved") == "not saved"
    assert counts(tab) == before
    tab.evaluate(
        "() => send('/api/act', { act: 'move', images: [0], to: null, name: 'dog' })"
    )  # half of it would apply
    assert counts(tab) == before and "called" in tab.inner_text("#toast")
    assert len([text for text in bad if "409" in text]) == len(bad) == 2
    bad.clear()


@pytest.mark.parametrize(
    ("width", "scheme"), tiered([(1440, "dark"), (390, "light")], product([1440, 390], ["light", "dark"]))
)
def test_everyone_can_use_it(browser: Browser, server: Served, width: int, scheme: Any) -> None:
    """axe-core finds nothing serious, in the page and in its dialogs; a phone needs no sideways scrolling."""
    tab = opened(browser, server, viewport={"width": width, "height": 844}, color_scheme=scheme)
    assert tab.evaluate("() => document.documentElement.scrollWidth") <= width
    tab.wait_for_function("() => [...document.querySelectorAll('.cell img')].every((image) => image.complete)")
    tab.wait_for_function("() => suggested.version === state.version")
    tab.evaluate(DOUBT)
    for keys in ("", "n", "s", "Enter", "?", "labels"):
        if keys == "labels":
            tab.evaluate(DOUBT)  # what was asked for meanwhile may have said otherwise
            tab.click("#doubts")
        elif keys:
            tab.keyboard.press(keys)
        if keys:
            tab.wait_for_selector("dialog[open]")
        found = Axe().run(tab).response["violations"]
        serious = [
            (one["id"], one["nodes"][0]["html"][:200]) for one in found if one["impact"] in ("serious", "critical")
        ]
        assert not serious, f"after {keys!r}"
        tab.keyboard.press("Escape")
    assert not tab.bad  # type: ignore[attr-defined]
    tab.close()


def test_a_server_that_has_ended_is_said(browser: Browser, serve: Serve) -> None:
    server = serve()
    tab = browser.new_page()
    tab.goto(server.url)
    tab.wait_for_selector("html[data-ready]")
    server.process.terminate()
    server.process.wait(20)
    tab.wait_for_selector("#banner:visible")
    assert "decisions.jsonl" in tab.inner_text("#banner")
    tab.close()
