"use strict";
// The gallery: tiles, pages, cards of categories, the viewer. It reads `data` as page.py writes it and knows nothing of the
// rest of the page: what else should happen is told to `Gallery` as functions. Text is only ever set as text.

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// A trust in words.
const together = (trust) => (trust >= 0.95 ? "nearly all belong together" : `about ${Math.round(10 * trust)} in 10 belong together`);
const percent = (value) => (value === null || value === undefined ? "–" : `${Math.round(100 * value)} %`);
const plural = (count, one, many) => `${count.toLocaleString("en")} ${count === 1 ? one : many}`;

class Gallery {
  // data: see page.py. on.look(image): a tile is pointed at; on.map(category): "Show on map"
  constructor(data, on) {
    this.data = data;
    this.on = on;
    this.images = data.images;
    this.members = data.categories.map(() => []);
    for (let i = 0; i < this.images.path.length; i++) {
      if (!this.images.labelled[i]) this.members[this.images.category[i]].push(i);
    }
    const order = this.images.confidence;
    for (const list of this.members) list.sort((a, b) => order[b] - order[a]);
    this.twins = new Map();
    for (const group of data.duplicates) for (const i of group) this.twins.set(i, group);
    this.viewer = document.getElementById("viewer");
    this.viewer.addEventListener("click", (event) => {
      if (event.target === this.viewer) this.viewer.close();
    });
    this.viewer.addEventListener("keydown", (event) => {
      if (event.key === "ArrowRight") this.step(1);
      if (event.key === "ArrowLeft") this.step(-1);
    });
  }

  name(category) {
    return this.data.categories[category].name;
  }

  groupName(group) {
    const all = this.data.categories.filter((category) => category.group === group).map((category) => category.name);
    return all.length > 6 ? `${all.slice(0, 5).join(", ")} and ${all.length - 5} more` : all.join(", ");
  }

  picture(image, eager) {
    const source = this.images.thumb[image];
    if (source) {
      const decoding = eager ? null : "async";
      return make("img", { src: `data:image/webp;base64,${source}`, alt: "", width: 80, height: 80, decoding });
    }
    return make("span", { class: "grey" }, this.images.reason[image] || "no picture");
  }

  tile(image, list) {
    const label = `${this.images.path[image]}, ${this.name(this.images.category[image])}`;
    return make(
      "button",
      {
        type: "button", class: "tile", "data-image": image, title: this.images.path[image], "aria-label": label,
        onclick: () => this.show(image, list),
        // only a pointer that moves: after a jump, whatever tile comes to lie under it must not take the mark
        onpointermove: (event) => { if (event.movementX || event.movementY) this.on.look(image); },
        onfocus: () => this.on.look(image),
      },
      this.picture(image),
    );
  }

  tiles(images) {
    return make("div", { class: "tiles" }, ...images.map((image) => this.tile(image, images)));
  }

  // A block that shows `total` things in pages; `draw(from, to)` returns the element of one page.
  pages(total, size, draw, what) {
    const place = make("div", {});
    const says = make("span", { "aria-live": "polite" });
    let page = 0;
    const last = Math.max(0, Math.ceil(total / size) - 1);
    const go = (to) => {
      page = Math.min(last, Math.max(0, to));
      const from = page * size, end = Math.min(total, from + size);
      place.replaceChildren(draw(from, end));
      says.textContent = total ? `${from + 1}–${end} of ${total.toLocaleString("en")} ${what}` : `no ${what}`;
      back.disabled = page === 0;
      next.disabled = page === last;
    };
    const back = make("button", { type: "button", onclick: () => go(page - 1) }, "Previous");
    const next = make("button", { type: "button", onclick: () => go(page + 1) }, "Next");
    const bar = make("div", { class: "bar" }, back, next, says);
    go(0);
    const block = make("div", {}, place, total > size || !total ? bar : null);
    block.goTo = (index) => go(Math.floor(index / size));
    return block;
  }

  // What a category is like, near-duplicates once: its most certain images, one of each part, its least certain ones.
  examples(category) {
    const facts = this.data.categories[category], seen = new Set();
    const once = (images, count) => {
      const kept = [];
      for (const image of images) {
        const twin = (this.twins.get(image) || [image])[0];
        if (kept.length < count && !seen.has(twin)) { seen.add(twin); kept.push(image); }
      }
      return kept;
    };
    for (const image of facts.typical) once([image], 1); // one of each part, whatever else is shown
    const groups = [
      ["most certain", once(facts.certain, this.data.shown)],
      [`typical of its parts: ${facts.part_sizes.join(", ")} images`, facts.typical],
      ["least certain", once([...this.members[category]].reverse(), 4)],
    ];
    return make("div", { class: "examples" }, ...groups.filter(([, images]) => images.length).map(
      ([title, images]) => make("figure", {}, make("figcaption", {}, title), this.tiles(images))));
  }

  // One category as a card, with its examples open and the rest behind buttons.
  card(category) {
    const facts = this.data.categories[category];
    const duplicates = this.members[category].filter((image) => this.twins.has(image));
    const below = make("div", { class: "below" });
    const parts = [
      ["Borderline", facts.borderline, "the two most probable categories are nearly equally probable"],
      ["Outliers", facts.outliers, "far from the other images of this category"],
      ["Near-duplicates", duplicates, "nearly the same as another image"],
      ["Labelled", facts.labelled, "labelled images of this class"],
    ];
    const buttons = [];
    const open = (button, content) => {
      const again = button.getAttribute("aria-pressed") === "true";
      for (const other of buttons) other.setAttribute("aria-pressed", "false");
      below.replaceChildren();
      if (again) return;
      button.setAttribute("aria-pressed", "true");
      below.append(...content());
    };
    for (const [title, images, why] of parts) {
      if (!images.length) continue;
      const button = make("button", { type: "button", "aria-pressed": "false" }, `${title} (${images.length})`);
      button.addEventListener("click", () => open(button, () => [make("p", { class: "why" }, why), this.tiles(images)]));
      buttons.push(button);
    }
    const all = this.members[category];
    const more = make("button", { type: "button", "aria-pressed": "false" }, `All images (${all.length})`);
    const pages = () => this.pages(all.length, 48, (from, to) => this.tiles(all.slice(from, to)), "images");
    more.addEventListener("click", () => open(more, () => [pages()]));
    buttons.push(more);
    const like = facts.like === null ? null
      : make("span", {}, facts.known ? "next to " : "looks most like ", make("b", {}, this.name(facts.like)), ` ${facts.alike.toFixed(2)}`);
    const trust = facts.trust === null ? null
      : make("span", { class: "trust", title: Object.entries(facts.parts).map(([name, value]) => `${name} ${percent(value)}`).join(", ") },
        make("meter", { min: 0, max: 1, value: facts.trust, "aria-label": `trust ${percent(facts.trust)}` }), ` ${together(facts.trust)}`);
    const card = make(
      "article", { class: `card ${facts.known ? "known" : "new"}`, id: `category-${category}`, tabindex: -1 },
      make("h3", {}, make("span", { class: "mark", "aria-hidden": "true" }, facts.known ? "●" : "▲"), " ", facts.name),
      make("p", { class: "facts" },
        make("span", { class: "kind" }, facts.known ? "known class" : "new category"),
        make("span", {}, plural(facts.size, "image", "images")), trust,
        make("span", {}, `confidence ${percent(facts.confidence)}`),
        facts.novelty === null ? null : make("span", {}, `novelty ${percent(facts.novelty)}`), like,
        make("span", {}, `group ${facts.group + 1}: ${this.groupName(facts.group)}`)),
      this.examples(category),
      make("div", { class: "bar" }, ...buttons,
        make("button", { type: "button", onclick: () => this.on.map(category) }, "Show on map")),
      below,
    );
    card.showAll = (image) => {
      if (more.getAttribute("aria-pressed") !== "true") more.click();
      below.firstElementChild.goTo(all.indexOf(image));
      return below.querySelector(`[data-image="${image}"]`);
    };
    return card;
  }

  // The viewer: one image with all that is known of it.
  show(image, list = [image]) {
    this.list = list;
    this.at = list.indexOf(image);
    const { images } = this, category = images.category[image];
    const rows = [["file", images.path[image]]];
    if (images.labelled[image]) rows.push(["label", this.name(category)]);
    else {
      rows.push(["category", `${this.name(category)} (${percent(images.confidence[image])})`]);
      for (const [other, p] of images.next[image]) rows.push(["or", `${this.name(other)} (${percent(p)})`]);
      if (images.confidence[image] < this.data.unsure) {
        rows.push(["unsure", `rather only its group: ${this.groupName(this.data.categories[category].group)}`]);
      }
      if (images.novelty) rows.push(["novelty", percent(images.novelty[image])]);
      if (images.added?.[image]) rows.push(["came with batch", images.added[image]]);
      if (images.looks_new) rows.push(["looks new", images.looks_new[image] ? "yes" : "no"]);
    }
    if (images.truth && images.truth[image]) rows.push(["truth", images.truth[image]]);
    if (images.reason[image]) rows.push(["not readable", images.reason[image]]);
    const twins = (this.twins.get(image) || []).filter((other) => other !== image);
    const facts = make("dl", {});
    for (const [name, value] of rows) facts.append(make("dt", {}, name), make("dd", {}, value));
    this.viewer.replaceChildren(
      make("div", { class: "large" }, this.picture(image, true)),
      facts,
      twins.length ? make("div", {}, make("p", {}, "nearly the same:"), this.tiles(twins)) : "",
      make("div", { class: "bar" },
        make("button", { type: "button", onclick: () => this.step(-1), disabled: this.at < 1 }, "Previous"),
        make("button", { type: "button", onclick: () => this.step(1), disabled: this.at >= list.length - 1 }, "Next"),
        make("button", { type: "button", onclick: () => { this.viewer.close(); this.on.find(image); } }, "In the gallery"),
        images.x[image] === null ? null
          : make("button", { type: "button", onclick: () => { this.viewer.close(); this.on.map(category, image); } }, "On the map"),
        make("button", { type: "button", class: "close", onclick: () => this.viewer.close() }, "Close")),
    );
    if (!this.viewer.open) this.viewer.showModal();
    this.on.look(image);
  }

  step(by) {
    const next = this.at + by;
    if (next >= 0 && next < this.list.length) this.show(this.list[next], this.list);
  }
}
