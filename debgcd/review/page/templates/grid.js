"use strict";
// A grid of images in sections, of which only the rows that are seen exist. It knows numbers and places, nothing of reviews:
// what a tile and a header look like, and what a click means, is told to `Grid` as functions.

class Grid {
  // on.tile(item): an element for one image; on.header(section): one for a section's first row; on.pin(section): the section at the
  // top whose header is out of sight, or null; on.scroll(): other rows are in sight; on.resize(): so are they; on.pick(item, how): how is "one", "more",
  // "range" or "open"; on.box(items, how): "one" or "more"
  constructor(scroller, rows, on) {
    Object.assign(this, { scroller, rows, on, size: 128, gap: 6, headerHeight: 68, columns: 1, tile: 128 });
    this.sections = [];
    this.drawn = new Map(); // row -> element
    this.tops = new Float64Array(1);
    this.pinned = -1;
    this.last = { top: 0, at: 0 };
    let waiting = false;
    scroller.addEventListener("scroll", () => {
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => { waiting = false; this.draw(); this.on.scroll(); });
    }, { passive: true });
    new ResizeObserver(() => { this.fit(); this.on.resize(); }).observe(scroller);
    this.beginPointer();
  }

  // sections: [{ key, items }]. What is at the top stays there.
  set(sections) {
    this.sections = sections;
    let most = -1;
    for (const { items } of sections) for (const item of items) if (item > most) most = item;
    this.section = new Int32Array(most + 1).fill(-1); // item -> section, -1 where it is not shown
    this.index = new Int32Array(most + 1);
    sections.forEach(({ items }, s) => {
      for (let i = 0; i < items.length; i++) { this.section[items[i]] = s; this.index[items[i]] = i; }
    });
    this.fit(true);
  }

  has(item) { return this.section[item] >= 0; }
  find(item) { return [this.section[item], this.index[item]]; }

  fit(again = false) {
    const width = this.scroller.clientWidth - 2 * this.gap;
    if (width <= 0) return;
    const columns = Math.max(1, Math.floor((width + this.gap) / (this.size + this.gap)));
    const tile = Math.floor((width - (columns - 1) * this.gap) / columns);
    if (!again && columns === this.columns && tile === this.tile) { this.draw(); return; }
    Object.assign(this, { columns, tile });
    this.scroller.style.setProperty("--tile", `${tile}px`);
    this.starts = []; // first row of each section
    let count = 0;
    for (const section of this.sections) {
      this.starts.push(count);
      count += 1 + Math.ceil(section.items.length / columns);
    }
    this.count = count;
    this.tops = new Float64Array(count + 1);
    this.of = new Int32Array(count); // row -> section
    let top = 0, row = 0;
    this.sections.forEach((section, s) => {
      const tiles = Math.ceil(section.items.length / columns);
      for (let i = 0; i <= tiles; i++) {
        this.tops[row] = top;
        this.of[row] = s;
        top += i === 0 ? this.headerHeight : tile + this.gap;
        row++;
      }
    });
    this.tops[count] = top;
    this.rows.style.height = `${top + this.gap}px`;
    this.scroller.setAttribute("aria-rowcount", count);
    this.scroller.setAttribute("aria-colcount", columns);
    for (const element of this.drawn.values()) element.remove();
    this.drawn.clear();
    this.pinned = -1;
    this.draw();
  }

  rowAt(y) {
    let low = 0, high = Math.max(0, this.count - 1);
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.tops[middle] <= y) low = middle; else high = middle - 1;
    }
    return low;
  }

  // Whether the middle of a row of images is in sight.
  seen(row) {
    const middle = this.tops[row] + this.tile / 2 - this.scroller.scrollTop;
    return row !== this.starts[this.of[row]] && middle >= 0 && middle <= this.scroller.clientHeight;
  }
  inSight(item) { return this.has(item) && this.seen(this.rowOf(item)); }

  // The first image that is in sight, null if none is.
  firstInSight() {
    const { scrollTop, clientHeight } = this.scroller;
    for (let row = this.rowAt(scrollTop); this.count && row <= this.rowAt(scrollTop + clientHeight); row++) {
      if (!this.seen(row)) continue;
      const s = this.of[row];
      return this.sections[s].items[(row - this.starts[s] - 1) * this.columns];
    }
    return null;
  }

  draw() {
    if (!this.count) { if (this.pinned !== -1) this.on.pin(null); this.pinned = -1; return; }
    const top = this.scroller.scrollTop, height = this.scroller.clientHeight;
    const first = Math.max(0, this.rowAt(top) - 1), last = Math.min(this.count - 1, this.rowAt(top + height) + 1);
    for (const [row, element] of this.drawn) {
      if (row < first || row > last) { element.remove(); this.drawn.delete(row); }
    }
    const fresh = document.createDocumentFragment();
    for (let row = first; row <= last; row++) {
      if (this.drawn.has(row)) continue;
      const element = this.row(row);
      this.drawn.set(row, element);
      fresh.append(element);
    }
    if (fresh.childNodes.length) this.rows.append(fresh);
    const row = this.rowAt(top + this.headerHeight / 2), s = this.of[row], section = row === this.starts[s] ? null : s;
    if (section !== this.pinned) { this.pinned = section; this.on.pin(section === null ? null : this.sections[section]); }
    // what flies past is not loaded
    const now = performance.now(), speed = Math.abs(top - this.last.top) / Math.max(1, now - this.last.at);
    this.last = { top, at: now };
    clearTimeout(this.settle);
    if (speed < 2) this.load();
    else this.settle = setTimeout(() => this.load(), 90);
  }

  load() {
    for (const image of this.rows.querySelectorAll("img[data-src]")) {
      image.src = image.dataset.src;
      image.removeAttribute("data-src");
    }
  }

  row(row) {
    const s = this.of[row], section = this.sections[s], at = row - this.starts[s];
    const element = make("div", { class: at ? "row" : "row head", role: "row", "aria-rowindex": row + 1 });
    element.style.transform = `translateY(${this.tops[row]}px)`;
    if (!at) element.append(this.on.header(section));
    else {
      const from = (at - 1) * this.columns;
      for (let i = from; i < Math.min(section.items.length, from + this.columns); i++) element.append(this.on.tile(section.items[i], i - from));
    }
    return element;
  }

  // Draw rows again whose look has changed, without moving anything.
  refresh() {
    for (const element of this.drawn.values()) element.remove();
    this.drawn.clear();
    this.pinned = -1;
    this.draw();
    this.load();
  }

  rowOf(item) {
    const [s, i] = this.find(item);
    return this.starts[s] + 1 + Math.floor(i / this.columns);
  }

  reveal(item, how = "near") {
    if (!this.has(item)) return false;
    const row = this.rowOf(item), top = this.tops[row], bottom = this.tops[row + 1];
    const view = this.scroller, pad = this.headerHeight;
    if (how === "centre") view.scrollTop = (top + bottom - view.clientHeight) / 2;
    else if (top - pad < view.scrollTop) view.scrollTop = top - pad;
    else if (bottom > view.scrollTop + view.clientHeight) view.scrollTop = bottom - view.clientHeight;
    this.draw();
    return true;
  }

  toSection(s) {
    this.scroller.scrollTop = this.tops[this.starts[s]];
    this.draw();
  }

  // The image that an arrow key leads to.
  step(item, key) {
    if (!this.has(item)) return this.sections.find((section) => section.items.length)?.items[0] ?? null;
    let [s, i] = this.find(item);
    const { columns, sections } = this, page = Math.max(1, Math.floor(this.scroller.clientHeight / (this.tile + this.gap)) - 1);
    const column = i % columns;
    const rows = (n) => Math.ceil(sections[n].items.length / columns);
    const down = (by) => {
      let row = Math.floor(i / columns) + by;
      while (row >= rows(s) && s + 1 < sections.length) { row -= rows(s); s++; }
      while (row < 0 && s > 0) { s--; row += rows(s); }
      row = Math.max(0, Math.min(rows(s) - 1, row));
      i = Math.min(sections[s].items.length - 1, row * columns + column);
    };
    if (key === "ArrowDown") down(1);
    else if (key === "ArrowUp") down(-1);
    else if (key === "PageDown") down(page);
    else if (key === "PageUp") down(-page);
    else if (key === "Home") i = 0;
    else if (key === "End") i = sections[s].items.length - 1;
    else {
      i += key === "ArrowRight" ? 1 : -1;
      if (i >= sections[s].items.length) { if (s + 1 < sections.length) { s++; i = 0; } else i--; }
      if (i < 0) { if (s > 0) { s--; i = sections[s].items.length - 1; } else i = 0; }
    }
    return sections[s].items[i] ?? null;
  }

  // All images from one to another, in the order of the grid.
  range(from, to) {
    if (!this.has(from) || !this.has(to)) return [to];
    let [a, b] = [this.find(from), this.find(to)];
    if (a[0] > b[0] || (a[0] === b[0] && a[1] > b[1])) [a, b] = [b, a];
    const found = [];
    for (let s = a[0]; s <= b[0]; s++) {
      const { items } = this.sections[s];
      for (let i = s === a[0] ? a[1] : 0; i < (s === b[0] ? b[1] + 1 : items.length); i++) found.push(items[i]);
    }
    return found;
  }

  // The images that a box touches; x and y from the top left of all rows. By place, so that rows need not exist.
  inside(left, top, right, bottom) {
    const found = [];
    if (!this.count) return found;
    for (let row = this.rowAt(top); row <= this.rowAt(bottom); row++) {
      const s = this.of[row], at = row - this.starts[s];
      if (!at || this.tops[row] + this.tile < top) continue;
      for (let column = 0; column < this.columns; column++) {
        const x = this.gap + column * (this.tile + this.gap), i = (at - 1) * this.columns + column;
        if (i < this.sections[s].items.length && x <= right && x + this.tile >= left) found.push(this.sections[s].items[i]);
      }
    }
    return found;
  }

  beginPointer() {
    const { scroller } = this, box = make("div", { id: "box", hidden: true });
    scroller.append(box);
    let from = null, dragging = false, pointer = null, hold = null, held = false;
    const place = (event) => {
      const area = this.rows.getBoundingClientRect();
      return [event.clientX - area.left, event.clientY - area.top];
    };
    const tileOf = (event) => {
      const tile = event.target.closest?.("[data-image]");
      return tile ? Number(tile.dataset.image) : null;
    };
    const pull = () => {
      if (!dragging) return;
      const area = scroller.getBoundingClientRect();
      const by = pointer.clientY < area.top + 30 ? -18 : pointer.clientY > area.bottom - 30 ? 18 : 0;
      if (by) { scroller.scrollTop += by; shape(); }
      requestAnimationFrame(pull);
    };
    const shape = () => {
      const [x, y] = place(pointer);
      const left = Math.min(x, from[0]), top = Math.min(y, from[1]), right = Math.max(x, from[0]), bottom = Math.max(y, from[1]);
      Object.assign(box.style, { left: `${left}px`, top: `${top}px`, width: `${right - left}px`, height: `${bottom - top}px` });
      this.on.box(this.inside(left, top, right, bottom), pointer.ctrlKey || pointer.metaKey || pointer.shiftKey ? "more" : "one");
    };
    scroller.addEventListener("pointerdown", (event) => {
      if (event.button || event.target.closest("button")) return;
      held = false;
      if (event.pointerType === "touch") { // a finger scrolls; held still, it opens the image
        const item = tileOf(event);
        hold = setTimeout(() => { held = true; if (item !== null) this.on.pick(item, "open"); }, 500);
        return;
      }
      if (event.clientX - scroller.getBoundingClientRect().left >= scroller.clientWidth) return; // the scroll bar
      from = place(event);
      pointer = event;
      this.on.press?.(event);
    });
    scroller.addEventListener("pointermove", (event) => {
      if (!from) return;
      pointer = event;
      const [x, y] = place(event);
      if (!dragging && Math.hypot(x - from[0], y - from[1]) > 6) {
        dragging = true;
        box.hidden = false;
        scroller.setPointerCapture(event.pointerId);
        requestAnimationFrame(pull);
      }
      if (dragging) shape();
    });
    const end = (event) => {
      clearTimeout(hold);
      const was = dragging;
      from = null;
      dragging = false;
      box.hidden = true;
      if (was || event.type === "pointercancel") { held = true; setTimeout(() => { held = false; }); }
    };
    scroller.addEventListener("pointerup", end);
    scroller.addEventListener("pointercancel", end);
    scroller.addEventListener("click", (event) => {
      const item = tileOf(event);
      if (item === null || held) return;
      const touch = event.pointerType === "touch";
      this.on.pick(item, event.shiftKey ? "range" : touch || event.ctrlKey || event.metaKey ? "more" : "one");
    });
    scroller.addEventListener("dblclick", (event) => {
      const item = tileOf(event);
      if (item !== null) this.on.pick(item, "open");
    });
    scroller.addEventListener("contextmenu", (event) => { if (event.pointerType === "touch") event.preventDefault(); });
    scroller.addEventListener("dragstart", (event) => event.preventDefault());
  }
}
