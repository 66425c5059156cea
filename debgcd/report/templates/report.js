"use strict";
// The report: wires the gallery, the map, the histogram and the table together. What is selected anywhere is shown everywhere.

const data = JSON.parse(document.getElementById("data").textContent);
const by = (id) => document.getElementById(id);
const { images, categories } = data;
const shown = images.path.map((_, i) => i).filter((i) => !images.labelled[i]);
const isKnown = (image) => categories[images.category[image]].known;
const state = { category: null, image: null, box: null, bin: null };

const gallery = new Gallery(data, {
  look: (image) => { if (state.image !== image) { state.image = image; map.draw(); mark(); } },
  map: (category, image = null) => {
    Object.assign(state, { category, image });
    map.draw();
    mark();
    by("map").scrollIntoView();
    by("canvas").focus({ preventScroll: true });
    map.say(image ?? undefined);
  },
  find: (image) => findImage(image),
});

function mark() {
  for (const tile of document.querySelectorAll(".tile.here")) tile.classList.remove("here");
  for (const tile of document.querySelectorAll(`.tile[data-image="${state.image}"]`)) tile.classList.add("here");
}

// Theme: the system's, until the button says otherwise.
by("theme").addEventListener("click", () => {
  const system = window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const { dataset } = document.documentElement;
  dataset.theme = (dataset.theme || system) === "dark" ? "light" : "dark";
  map.draw();
});

// Categories.
const ORDERS = {
  interest: (a, b) => data.order.indexOf(a) - data.order.indexOf(b),
  size: (a, b) => categories[b].size - categories[a].size,
  trust: (a, b) => (categories[b].trust ?? -1) - (categories[a].trust ?? -1),
  name: (a, b) => categories[a].name.localeCompare(categories[b].name),
};
let chosen = [];
let cards = null;
function drawCategories() {
  const kind = by("kind").value, text = by("named").value.trim().toLowerCase();
  chosen = categories.map((_, c) => c)
    .filter((c) => kind === "all" || categories[c].known === (kind === "known"))
    .filter((c) => categories[c].name.toLowerCase().includes(text) || gallery.members[c].some((i) => images.path[i].toLowerCase().includes(text)))
    .sort(ORDERS[by("order").value]);
  cards = gallery.pages(chosen.length, 12, (from, to) => {
    const page = document.createElement("div");
    for (const c of chosen.slice(from, to)) {
      const card = gallery.card(c);
      page.append(card);
    }
    return page;
  }, "categories");
  by("cards").replaceChildren(cards);
}
for (const id of ["kind", "order"]) by(id).addEventListener("change", drawCategories);
by("named").addEventListener("input", drawCategories);

function findCategory(category) {
  if (!chosen.includes(category)) {
    by("kind").value = "all";
    by("named").value = "";
    drawCategories();
  }
  cards.goTo(chosen.indexOf(category));
  const card = by(`category-${category}`);
  card.scrollIntoView();
  card.focus({ preventScroll: true });
  return card;
}
function findImage(image) {
  const tile = findCategory(images.category[image]).showAll(image);
  state.image = image;
  mark();
  map.draw();
  if (tile) { tile.scrollIntoView({ block: "center" }); tile.focus({ preventScroll: true }); }
}

// The map: a canvas; points, hover, a box to select, arrow keys.
const map = {
  canvas: by("canvas"),
  points: shown.filter((i) => images.x[i] !== null),
  from: null,
  rectangle: null,
  scale() {
    const { width, height } = this.canvas.getBoundingClientRect();
    return { width, height, x: (i) => 10 + (images.x[i] / 1000) * (width - 20), y: (i) => 10 + (images.y[i] / 1000) * (height - 20) };
  },
  colour(image, style) {
    const how = by("colour").value;
    if (how === "kind") return style.getPropertyValue(isKnown(image) ? "--known" : "--new");
    const value = how === "novelty" ? images.novelty[image] : images.confidence[image];
    const from = [68, 90, 170], to = [250, 200, 40]; // from blue to yellow, which all eyes tell apart
    return `rgb(${from.map((c, j) => Math.round(c + value * (to[j] - c))).join(",")})`;
  },
  draw() {
    const { canvas } = this, at = this.scale(), ratio = window.devicePixelRatio || 1;
    if (!at.width) return;
    canvas.width = at.width * ratio;
    canvas.height = at.height * ratio;
    const pen = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
    pen.scale(ratio, ratio);
    const size = Math.max(2, Math.min(5, 90 / Math.sqrt(this.points.length + 1)));
    const shape = (i, r) => {
      pen.beginPath();
      if (isKnown(i)) pen.arc(at.x(i), at.y(i), r, 0, 7);
      else {
        pen.moveTo(at.x(i), at.y(i) - 1.25 * r);
        pen.lineTo(at.x(i) + 1.1 * r, at.y(i) + 0.8 * r);
        pen.lineTo(at.x(i) - 1.1 * r, at.y(i) + 0.8 * r);
        pen.closePath();
      }
    };
    const bright = (i) => state.category === null || images.category[i] === state.category;
    for (const layer of [false, true]) {
      for (const i of this.points) {
        if (bright(i) !== layer) continue;
        pen.globalAlpha = layer ? 0.85 : 0.12;
        pen.fillStyle = this.colour(i, style);
        shape(i, size);
        pen.fill();
      }
    }
    pen.globalAlpha = 1;
    pen.strokeStyle = style.getPropertyValue("--ink");
    pen.lineWidth = 2;
    for (const i of state.box || []) { pen.lineWidth = 1; shape(i, size + 1); pen.stroke(); }
    if (state.image !== null && images.x[state.image] !== null && !images.labelled[state.image]) {
      pen.lineWidth = 3;
      shape(state.image, size + 6);
      pen.stroke();
    }
    if (this.rectangle) {
      pen.lineWidth = 1;
      pen.strokeRect(...this.rectangle);
    }
    by("clear").hidden = state.category === null && !state.box;
  },
  nearest(x, y, within = 20) {
    const at = this.scale();
    let best = null, least = within * within;
    for (const i of this.points) {
      const d = (at.x(i) - x) ** 2 + (at.y(i) - y) ** 2;
      if (d < least) { best = i; least = d; }
    }
    return best;
  },
  say(image) {
    const parts = [];
    if (state.category !== null) parts.push(`${gallery.name(state.category)} is highlighted`);
    if (state.box) parts.push(`${plural(state.box.length, "image", "images")} selected: see the table`);
    if (image !== undefined && image !== null) parts.push(`${images.path[image]}: ${gallery.name(images.category[image])}`);
    by("says").textContent = parts.join(" · ");
  },
  tip(image, x, y) {
    const tip = by("tip");
    tip.hidden = image === null;
    if (image === null) return;
    tip.replaceChildren(gallery.picture(image, true), make("span", {}, gallery.name(images.category[image])));
    const { width } = this.scale();
    tip.style.left = `${Math.min(x + 14, width - 110)}px`;
    tip.style.top = `${y + 14}px`;
  },
  place(event) {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  },
  move(dx, dy) {
    const at = this.scale();
    if (state.image === null || images.x[state.image] === null) return this.points[0] ?? null;
    let best = null, least = Infinity;
    for (const i of this.points) {
      const x = at.x(i) - at.x(state.image), y = at.y(i) - at.y(state.image);
      const along = x * dx + y * dy, aside = Math.abs(x * dy) + Math.abs(y * dx);
      const cost = along + 2 * aside;
      if (i !== state.image && along > 0 && aside <= 2 * along && cost < least) { best = i; least = cost; }
    }
    return best;
  },
  begin() {
    const { canvas } = this;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "touch") return; // a finger scrolls
      this.from = this.place(event);
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const [x, y] = this.place(event);
      if (this.from && Math.hypot(x - this.from[0], y - this.from[1]) > 5) {
        this.rectangle = [Math.min(x, this.from[0]), Math.min(y, this.from[1]), Math.abs(x - this.from[0]), Math.abs(y - this.from[1])];
        this.draw();
        return;
      }
      const image = this.nearest(x, y);
      this.tip(image, x, y);
      if (image !== null && image !== state.image) { state.image = image; this.draw(); mark(); this.say(image); }
    });
    canvas.addEventListener("pointerleave", () => this.tip(null));
    canvas.addEventListener("pointerup", (event) => {
      const [x, y] = this.place(event), rectangle = this.rectangle, began = this.from;
      this.from = this.rectangle = null;
      if (rectangle) {
        const [left, top, width, height] = rectangle, at = this.scale();
        state.box = this.points.filter((i) => at.x(i) >= left && at.x(i) <= left + width && at.y(i) >= top && at.y(i) <= top + height);
        this.tip(null);
        this.say();
        table.draw();
        this.draw();
      } else if (began || event.pointerType === "touch") {
        const image = this.nearest(x, y);
        if (image !== null) { this.tip(null); gallery.show(image, [image]); this.say(image); }
      }
    });
    canvas.addEventListener("keydown", (event) => {
      const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (way) {
        event.preventDefault();
        const image = this.move(...way);
        if (image !== null) { state.image = image; this.draw(); mark(); this.say(image); }
      }
      if (event.key === "Enter" && state.image !== null) {
        event.preventDefault(); // else the same key presses the first button of the viewer
        gallery.show(state.image, [state.image]);
      }
      if (event.key === "Escape") by("clear").click();
    });
    by("clear").addEventListener("click", () => {
      Object.assign(state, { category: null, box: null });
      this.say();
      this.draw();
      table.draw();
      canvas.focus({ preventScroll: true });
    });
    by("colour").addEventListener("change", () => this.draw());
    window.addEventListener("resize", () => this.draw());
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    this.draw();
  },
};

// The histogram: bars of known and new categories side by side; a bar filters the table.
const BINS = 20;
const SVG = "http://www.w3.org/2000/svg";
function drawHistogram() {
  const measure = by("measure").value, values = images[measure];
  const width = Math.max(240, Math.min(800, by("histogram").clientWidth - 70)); // small type on a small screen cannot be read
  const counts = Array.from({ length: BINS }, () => [0, 0]);
  for (const i of shown) counts[Math.min(BINS - 1, Math.floor(values[i] * BINS))][isKnown(i) ? 0 : 1]++;
  const most = Math.max(1, ...counts.flat()), height = 200, step = width / BINS;
  const element = (tag, attributes, text) => {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text) made.textContent = text;
    return made;
  };
  const svg = element("svg", { viewBox: `0 0 ${width + 60} ${height + 50}`, role: "group", "aria-label": `histogram of ${measure}` });
  counts.forEach(([known, fresh], bin) => {
    const from = (bin / BINS).toFixed(2), to = ((bin + 1) / BINS).toFixed(2);
    const says = `${measure} ${from} to ${to}: ${known} in known classes, ${fresh} in new categories`;
    const bar = element("g", { tabindex: 0, role: "button", "aria-label": says, "aria-pressed": state.bin === bin, class: "bin" });
    bar.append(element("title", {}, says), element("rect", { x: 50 + bin * step, y: 10, width: step, height, class: "back" }));
    [known, fresh].forEach((count, side) => {
      const tall = (count / most) * height;
      bar.append(element("rect", { x: 50 + bin * step + 3 + side * (step / 2 - 3), y: 10 + height - tall, width: step / 2 - 3, height: tall, class: side ? "fresh" : "old" }));
    });
    const choose = () => {
      state.bin = state.bin === bin ? null : bin;
      drawHistogram();
      table.draw();
      by("histogram").querySelectorAll(".bin")[bin].focus();
    };
    bar.addEventListener("click", choose);
    bar.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(); }
    });
    svg.append(bar);
  });
  for (let tick = 0; tick <= 5; tick++) {
    svg.append(element("text", { x: 50 + (tick / 5) * width, y: height + 30, "text-anchor": "middle" }, (tick / 5).toFixed(1)));
  }
  svg.append(element("text", { x: 44, y: 20, "text-anchor": "end" }, most), element("text", { x: 44, y: height + 10, "text-anchor": "end" }, "0"));
  svg.append(element("text", { transform: `translate(16 ${10 + height / 2}) rotate(-90)`, "text-anchor": "middle" }, "images"));
  svg.append(element("text", { x: 50 + width / 2, y: height + 48, "text-anchor": "middle" }, measure));
  by("histogram").replaceChildren(svg);
}
by("measure").addEventListener("change", () => { state.bin = null; drawHistogram(); table.draw(); });

// The table of images: search, filters, sorting, pages.
const table = {
  sort: "path",
  down: false,
  value(image, column) {
    if (column === "category") return gallery.name(images.category[image]);
    if (column === "kind") return isKnown(image) ? "known" : "new";
    return images[column][image];
  },
  rows() {
    const text = by("search").value.trim().toLowerCase(), category = by("of").value, only = by("only").value;
    const measure = images[by("measure").value];
    const boxed = state.box && new Set(state.box);
    const kept = shown.filter((i) =>
      (!text || images.path[i].toLowerCase().includes(text) || gallery.name(images.category[i]).toLowerCase().includes(text)) &&
      (category === "" || images.category[i] === Number(category)) &&
      (only === "" || (only === "unsure" ? images.confidence[i] < data.unsure : only === "twins" ? gallery.twins.has(i) : isKnown(i) === (only === "known"))) &&
      (!boxed || boxed.has(i)) &&
      (state.bin === null || Math.min(BINS - 1, Math.floor(measure[i] * BINS)) === state.bin));
    const sign = this.down ? -1 : 1;
    return kept.sort((a, b) => {
      const one = this.value(a, this.sort), two = this.value(b, this.sort);
      return sign * (typeof one === "string" ? one.localeCompare(two) : one - two) || a - b;
    });
  },
  draw() {
    const rows = this.rows();
    const columns = [["path", "file"], ["category", "category"], ["kind", "kind"], ["confidence", "confidence"]];
    if (images.novelty) columns.push(["novelty", "novelty"]);
    const head = () => make("tr", {}, make("th", { scope: "col" }, "image"), ...columns.map(([key, title]) => make(
      "th", { scope: "col", class: typeof this.value(shown[0], key) === "number" ? "number" : "", "aria-sort": this.sort === key ? (this.down ? "descending" : "ascending") : "none" },
      make("button", {
        type: "button", onclick: () => {
          this.down = this.sort === key ? !this.down : typeof this.value(shown[0], key) === "number";
          this.sort = key;
          this.draw();
          by("table").querySelector(`[data-column="${key}"]`).focus();
        }, "data-column": key,
      }, title, this.sort === key ? (this.down ? " ▼" : " ▲") : ""))));
    const line = (i, all) => make("tr", {}, make("td", {}, gallery.tile(i, all)), make("td", { class: "path" }, images.path[i]),
      make("td", {}, gallery.name(images.category[i]), images.confidence[i] < data.unsure ? make("small", {}, ` group ${categories[images.category[i]].group + 1}`) : null),
      make("td", { class: isKnown(i) ? "known" : "new" }, isKnown(i) ? "known" : "new"),
      make("td", { class: "number" }, images.confidence[i].toFixed(2)),
      images.novelty ? make("td", { class: "number" }, images.novelty[i].toFixed(2)) : null);
    by("table").replaceChildren(gallery.pages(rows.length, 50, (from, to) =>
      make("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "table of images" }, make("table", {}, make("thead", {}, head()), make("tbody", {}, ...rows.slice(from, to).map((i) => line(i, rows))))), "images"));
    const filters = [state.box ? "selected on the map" : "", state.bin === null ? "" : "one bar of the histogram"].filter(Boolean);
    by("count").textContent = plural(rows.length, "image", "images") + (filters.length ? ` (${filters.join(", ")})` : "");
    by("reset").hidden = !filters.length;
  },
};
for (const id of ["of", "only"]) by(id).addEventListener("change", () => table.draw());
by("search").addEventListener("input", () => table.draw());
by("reset").addEventListener("click", () => {
  Object.assign(state, { box: null, bin: null });
  map.say();
  map.draw();
  drawHistogram();
  table.draw();
});

for (const c of data.order) by("of").append(make("option", { value: c }, categories[c].name));
drawCategories();
map.begin();
drawHistogram();
table.draw();
for (const jump of document.querySelectorAll("[data-category]")) {
  jump.addEventListener("click", (event) => { event.preventDefault(); findCategory(Number(jump.dataset.category)); });
}
document.documentElement.dataset.ready = "yes";
