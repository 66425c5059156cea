"use strict";
// The review: what the server says, what is selected, what each key does. Text is only ever set as text.

const by = (id) => document.getElementById(id);
const OPEN = 0, ACCEPTED = 1, REJECTED = 2;
const WORDS = ["to review", "accepted", "rejected"];
const CERTAIN = 800; // thousandths of confidence that an image has at least to be certain
const FACES = 6; // images of a kind in a dialog
const state = {
  about: null, low: [], version: -1, categories: [], category: new Int32Array(0), status: new Uint8Array(0), members: [],
  order: [], // numbers of categories, as they are shown
  similarity: null, // per image, to the mean of its category
  trust: [], // per category, null where it cannot be told
  certain: "", // per image "1" or "0"; empty until it is known
  features: false, note: "", suggests: false,
  selected: new Set(), base: new Set(), cursor: null, anchor: null,
  like: null, // { images, similarity, cut }: the view of images that look like some
  walked: new Set(), // what "label next" has shown
  teach: [], // what it will show
};

// The server.

async function ask(path, body) {
  const request = body === undefined ? {} : { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
  let response;
  try {
    response = await fetch(path, request);
  } catch {
    ended();
    throw new Error("the server does not answer");
  }
  if (response.status === 403) { ended(); throw new Error("this page belongs to a server that has ended"); }
  const answer = await response.json().catch(() => ({ error: `the server answered ${response.status}` }));
  if (!response.ok) throw new Error(answer.error ?? `the server answered ${response.status}`);
  by("banner").hidden = true;
  return answer;
}

function ended() {
  by("banner").textContent = "The server does not answer. Everything that was saved is in decisions.jsonl; start debgcd review again and open the URL that it prints.";
  by("banner").hidden = false;
}

let queue = Promise.resolve(); // one after the other, in the order of the keys
function send(path, body, says) {
  by("saved").textContent = "saving …";
  queue = queue.then(async () => {
    try {
      const begun = performance.now();
      const changes = await ask(path, { ...body, since: state.version });
      document.documentElement.dataset.took = (performance.now() - begun).toFixed(1); // for benchmarks/review_page.py
      take(changes);
      by("saved").textContent = "saved";
      if (changes.behind) toast(changes.behind, true);
      else if (says) toast(says);
    } catch (error) {
      by("saved").textContent = "not saved";
      toast(error.message, true);
    }
  });
  return queue;
}

// What has changed, from any window.
function take(changes) {
  const became = changes.features && !state.features;
  state.features = changes.features;
  state.note = changes.note;
  state.suggests = changes.suggests;
  if (changes.version !== state.version) {
    state.version = changes.version;
    state.categories = changes.categories;
    const touched = new Set();
    changes.images.forEach((image, i) => {
      if (state.category[image] !== changes.category[i]) { touched.add(state.category[image]); touched.add(changes.category[i]); }
      state.category[image] = changes.category[i];
      state.status[image] = changes.status[i];
    });
    by("undo").disabled = !changes.undo;
    by("redo").disabled = !changes.redo;
    by("again").textContent = changes.again;
    by("again").hidden = !changes.again;
    for (let c = state.members.length; c < state.categories.length; c++) { // one that is new comes after where it came from
      state.members.push([]);
      const here = state.cursor === null ? -1 : state.order.indexOf(state.category[state.cursor]);
      state.order.splice(here + 1, 0, c);
    }
    for (const c of touched) state.trust[c] = null; // and which of its images are certain: not known until it is asked again
    arrange(touched);
  }
  if (became && by("order").value === "similarity") orderBySimilarity();
}

async function poll() {
  if (document.visibilityState === "visible" && state.about) {
    const before = state.version;
    await queue;
    try {
      const changes = await ask(`/api/changes?since=${state.version}`);
      if (changes.version >= state.version) take(changes);
      if (state.suggests && suggested.version !== state.version) takeSuggestions(await ask("/api/suggestions"));
      if (before !== -1 && state.version !== before) by("saved").textContent = "saved";
    } catch { /* the banner says it */ }
  }
  setTimeout(poll, 1500);
}

// What is shown.

const name = (c) => state.categories[c].name;
const known = (c) => state.categories[c].known;
const percentOf = (value) => `${Math.round(value / 10)} %`;
const current = () => (state.cursor === null ? null : state.category[state.cursor]);
const thumb = (image) => `/thumb/${image}?${state.about.key}`;

function value(image) {
  const how = by("order").value, { lead, novelty, confidence } = state.about;
  if (how === "doubt") return lead[image];
  if (how === "novelty") return -(novelty[image] ?? 0);
  return -(state.similarity ? state.similarity[image] : confidence[image]);
}

// The images of these categories, or of all, in the chosen order.
function arrange(touched = null) {
  const { category, members } = state, count = category.length, chosen = members.map((_, c) => touched === null || touched.has(c));
  members.forEach((list, c) => { if (chosen[c]) list.length = 0; });
  const keys = new Float64Array(count);
  for (let i = 0; i < count; i++) {
    if (!chosen[category[i]]) continue;
    members[category[i]].push(i);
    keys[i] = value(i);
  }
  members.forEach((list, c) => { if (chosen[c]) list.sort((a, b) => keys[a] - keys[b] || a - b); });
  drawAll();
}

function shownCategories() {
  const show = by("show").value;
  return state.order.filter((c) => {
    const one = state.categories[c];
    if (one.gone || !state.members[c].length) return false;
    if (show === "new" && one.known || show === "known" && !one.known) return false;
    return inPart(c).length > 0;
  });
}

// The images of a category that are shown: all, unless a part was asked for, or the files of a name that is not the category's.
function inPart(c) {
  const show = by("show").value, text = by("find").value.trim().toLowerCase(), { status, members, low, categories } = state;
  const ofFile = text && ![categories[c].name, categories[c].id].some((each) => each.toLowerCase().includes(text));
  if (!ofFile && show !== "open" && show !== "rejected") return members[c];
  return members[c].filter((image) => (!ofFile || low[image].includes(text)) && (show === "open" ? status[image] === OPEN : show !== "rejected" || status[image] === REJECTED));
}

function drawAll() {
  if (state.like) grid.set([{ key: "like", items: state.like.images }]);
  else grid.set(shownCategories().map((c) => ({ key: c, items: inPart(c) })));
  if (state.cursor === null || !grid.has(state.cursor)) state.cursor = grid.sections[0]?.items[0] ?? null;
  follow();
  by("nothing").hidden = grid.count > 0;
  drawList();
  drawProgress();
  drawActs();
  drawSuggestion();
}

function drawProgress() {
  const count = state.status.length, done = state.status.reduce((sum, status) => sum + (status !== OPEN), 0);
  by("done").max = Math.max(1, count);
  by("done").value = done;
  by("reviewed").textContent = `${done.toLocaleString("en")} of ${plural(count, "image", "images")} reviewed`;
}

function mark(one) {
  return make("span", { class: `mark ${one.known ? "known" : "new"}`, "aria-hidden": "true" }, one.known ? "●" : "▲");
}

const statusOf = (c) => {
  const { members, status, categories } = state;
  if (categories[c].status !== OPEN) return categories[c].status;
  return members[c].length && members[c].every((image) => status[image] !== OPEN) ? ACCEPTED : OPEN;
};

function drawList() {
  const here = current();
  by("list").replaceChildren(...shownCategories().map((c) => {
    const one = state.categories[c];
    const done = statusOf(c);
    return make("li", {}, make("button", {
      type: "button", class: `entry s${done}`, "data-category": c, "aria-current": c === here ? "true" : null, title: one.name === one.id ? one.id : `${one.name} (${one.id})`,
      onclick: () => { closeMenu(); goTo(c); },
    }, mark(one), make("span", { class: "name" }, one.name), make("span", { class: "tick" }, ["", "✓", "✕"][done], make("span", { class: "hidden" }, WORDS[done])),
    make("span", { class: "count" }, state.members[c].length.toLocaleString("en"))));
  }));
}

function goTo(c) {
  state.like = null;
  if (!shownCategories().includes(c)) { by("show").value = "all"; by("find").value = ""; }
  drawAll();
  const s = grid.sections.findIndex((section) => section.key === c);
  if (s < 0) return;
  grid.toSection(s);
  moveCursor(grid.sections[s].items[0], false);
  by("grid").focus({ preventScroll: true });
}

// Without a selection an act is about the category of the cursor: so the cursor stays where it can be seen.
function follow() {
  if (!grid.inSight(state.cursor)) moveCursor(grid.firstInSight(), false);
}

const grid = new Grid(by("grid"), by("rows"), {
  tile(image, column) {
    const { selected, status, about } = state;
    const picture = make("img", { alt: "", "data-src": thumb(image), width: 160, height: 160 });
    picture.addEventListener("error", () => picture.replaceWith(make("span", { class: "grey" }, "cannot be shown")));
    const said = [about.path[image], `${name(state.category[image])} ${percentOf(about.confidence[image])}`, WORDS[status[image]]];
    return make("div", {
      class: `cell s${status[image]}${image === state.cursor ? " here" : ""}`, role: "gridcell", id: `image-${image}`, "data-image": image,
      "aria-selected": String(selected.has(image)), "aria-label": said.join(", "), "aria-colindex": column + 1, title: about.path[image],
    }, picture, status[image] ? make("span", { class: "badge", "aria-hidden": "true" }, ["", "✓", "✕"][status[image]]) : null);
  },
  header(section) {
    if (section.key === "like") return likeHeader(section);
    const c = section.key, one = state.categories[c], done = statusOf(c), { examples } = state.about;
    const button = (text, work, label) => make("button", { type: "button", tabindex: -1, "aria-label": `${label} ${one.name}`, onclick: () => { moveCursor(section.items[0], false); clear(); work(); by("grid").focus(); } }, text);
    return make("div", { class: `headline s${done}${c === current() ? " here" : ""}`, role: "gridcell", "data-category": c },
      make("div", { class: "titles" },
        make("strong", {}, mark(one), " ", one.name), one.name === one.id ? null : make("small", { class: "id" }, one.known ? "" : one.id),
        make("small", {}, `${plural(state.members[c].length, "image", "images")} · ${done === OPEN && state.trust[c] != null ? `${together(state.trust[c])} · ` : ""}`, make("span", { class: "chip" }, WORDS[done]), ` · ${one.known ? "known class" : "new category"}`)),
      make("div", { class: "examples", "aria-hidden": "true" }, ...(examples[one.id] || []).map((image) => make("img", { alt: "", "data-src": thumb(image), title: `labelled: ${one.id}`, width: 44, height: 44 }))),
      make("div", { class: "group" }, button("Select", () => select(section.items, "one"), "select all of"), button("Name", acts.name.work, "name"), button("✓", acts.accept.work, "accept"), button("✕", acts.reject.work, "reject")));
  },
  pin(section) {
    const text = !section ? "" : section.key === "like" ? "Like the selected" : name(section.key);
    by("pinned").replaceChildren(...(section && section.key !== "like" ? [mark(state.categories[section.key]), " "] : []), text);
  },
  scroll: follow,
  resize() { if (state.cursor !== null && !grid.inSight(state.cursor)) grid.reveal(state.cursor, "centre"); },
  press() { state.base = new Set(state.selected); },
  pick(image, how) {
    if (how === "open") { moveCursor(image, false); view(image); return; }
    if (how === "range") select(grid.range(state.anchor ?? image, image), "one");
    else if (how === "more") { toggle(image); state.anchor = image; }
    else { select([image], "one"); state.anchor = image; }
    moveCursor(image, false);
  },
  box(images, how) { select(how === "more" ? [...state.base, ...images] : images, "one"); },
});

function likeHeader() {
  const { like } = state, slider = make("input", { type: "range", id: "alike", min: like.similarity[like.similarity.length - 1], max: 1000, value: like.cut, "aria-label": "how alike" });
  slider.addEventListener("input", () => { like.cut = Number(slider.value); selectLike(); });
  return make("div", { class: "headline", role: "gridcell" },
    make("div", { class: "titles" }, make("strong", {}, "Most like the selected"), make("small", {}, "as alike as two images of this category: move the slider for more or fewer")),
    make("label", { class: "pick" }, "how alike ", slider),
    make("div", { class: "group" }, make("button", { type: "button", tabindex: -1, onclick: leaveLike }, "Back")));
}

// The selection and the cursor.

function paint() {
  for (const row of grid.drawn.values()) {
    for (const cell of row.querySelectorAll("[data-image]")) {
      const image = Number(cell.dataset.image);
      cell.setAttribute("aria-selected", state.selected.has(image));
      cell.classList.toggle("here", image === state.cursor);
    }
    const head = row.querySelector("[data-category]");
    head?.classList.toggle("here", Number(head.dataset.category) === current());
  }
  drawActs();
}
function select(images, how) {
  if (how === "one") state.selected.clear();
  for (const image of images) state.selected.add(image);
  paint();
}
function toggle(image) {
  if (!state.selected.delete(image)) state.selected.add(image);
  paint();
}
function clear() {
  state.selected.clear();
  paint();
}
function moveCursor(image, reveal = true, how = "near") {
  if (image === null || image === undefined) return;
  const before = current();
  state.cursor = image;
  if (reveal) grid.reveal(image, how);
  by("grid").setAttribute("aria-activedescendant", `image-${image}`);
  paint();
  if (before !== current()) {
    for (const entry of by("list").querySelectorAll("button")) {
      const here = Number(entry.dataset.category) === current();
      if (here) { entry.setAttribute("aria-current", "true"); entry.scrollIntoView({ block: "nearest" }); } else entry.removeAttribute("aria-current");
    }
  }
}

// What an act is about: the selected images, or without any what is shown of the category of the cursor.
function target() {
  if (!state.selected.size) {
    const c = current();
    if (c !== null && state.like) return { images: [state.cursor], categories: [c], whole: false }; // other categories are in sight
    if (c === null) return null;
    const images = by("show").value === "open" ? state.members[c] : inPart(c); // accepted images stay what they are
    return { images, categories: [c], whole: images.length === state.members[c].length };
  }
  const images = [...state.selected], categories = [...new Set(images.map((image) => state.category[image]))];
  return { images, categories, whole: images.length === categories.reduce((sum, c) => sum + state.members[c].length, 0) };
}
const single = (found) => found.whole && found.categories.length === 1;
const ids = (numbers) => numbers.map((c) => state.categories[c].id);
const about = (found) => (single(found) ? name(found.categories[0]) : plural(found.images.length, "image", "images"));

function finish() {
  state.like = null;
  state.selected.clear();
}

// Acts, each with its key.

const acts = {
  name: {
    key: "n", text: "Name", help: "name the category and accept all or some of its images; with a selection, give these images one name",
    work() {
      const found = target();
      if (!found) return;
      const [c] = found.categories, one = state.categories[c];
      if (found.categories.length > 1 || (one.known && !found.whole)) { place(found, "Name"); return; }
      choose({
        title: `Name ${one.name}`, found, scopes: scopes(found), start: one.name === one.id ? "" : one.name,
        free: (text, scope) => (text ? `name ${scope.own ? plural(scope.images.length, "image", "images") : "it"} “${text}”` : scope.own ? "a new category without a name" : one.name === one.id ? null : "take the name away"),
        which: (other) => other !== c && (known(other) || name(other) !== state.categories[other].id), says: "move them to",
        chosen(other, text, scope) {
          const some = { images: scope.images, categories: [c], whole: scope.images.length === state.members[c].length };
          if (other !== null) { mergeInto(some, other); return; }
          if (scope.own) { moveTo(some, null, text); return; }
          finish();
          send("/api/act", { act: "name", category: one.id, name: text, ...(scope.rest ? { images: scope.images } : {}) }, text ? `${one.id} is called ${text}${scope.rest ? `; ${plural(scope.rest, "image stays", "images stay")} to review` : ""}` : `${one.id} has no name`);
        },
      });
    },
  },
  merge: {
    key: "m", text: "Merge", help: "merge the category, or those of the selection, into another",
    work() {
      const found = target();
      if (!found) return;
      const all = found.categories;
      choose({ title: `Merge ${all.map(name).join(", ")} into …`, found: { ...found, images: all.flatMap((c) => state.members[c]) }, which: (other) => all.length > 1 || !all.includes(other), says: "merge into", chosen: (other) => mergeInto(found, other) });
    },
  },
  move: { key: "v", text: "Move", help: "move the selected images, or the one at the cursor, to another category or a new one", work() { const found = picked(); if (found) place(found, "Move"); } },
  split: {
    key: "s", text: "Split", help: "split the category or the selection by what looks alike; shown before it is done",
    work() {
      const found = target();
      if (!found) return;
      if (found.categories.length > 1) { toast("Select images of one category to split it", true); return; }
      split(found);
    },
  },
  accept: { key: "a", text: "Accept", help: "accept the category or the selection as it is", work() { judge("accept", "accepted"); } },
  reject: {
    key: "r", text: "Reject", help: "not a category, or not this: left out of training; again: to review",
    work() {
      const found = target();
      if (!found) return;
      const rejected = single(found) ? state.categories[found.categories[0]].status === REJECTED : found.images.every((image) => state.status[image] === REJECTED);
      judge(...(rejected ? ["reopen", "to be reviewed again"] : ["reject", "rejected"]));
    },
  },
  known: {
    key: "k", text: "Known", help: "mark as a known class",
    work() {
      const found = target();
      if (!found) return;
      choose({ title: `${about(found)}: which known class?`, found, which: (other) => known(other) && !(found.categories.length === 1 && found.categories[0] === other), says: "is", chosen: (other) => mergeInto(found, other) });
    },
  },
  like: { key: "l", text: "Like this", help: "select all images that look like this one", work: likeThis },
};

function picked() {
  if (state.selected.size || state.cursor === null) return state.selected.size ? target() : null;
  return { images: [state.cursor], categories: [current()], whole: false };
}

// Into another category: whole new categories are merged, images are moved.
function mergeInto(found, other) {
  const into = state.categories[other], gone = found.categories.filter((c) => c !== other);
  const says = `${about(found)} → ${into.name}`;
  finish();
  if (found.whole && gone.length && !gone.some(known)) send("/api/act", { act: "merge", categories: ids(gone), into: into.id }, says);
  else send("/api/act", { act: "move", images: found.images, to: into.id }, says);
}

function place(found, verb) {
  choose({
    title: `${verb} ${about(found)}`, found, which: (other) => !(found.categories.length === 1 && found.categories[0] === other), says: "move to",
    free: (text) => (text ? `a new category “${text}”` : "a new category without a name"),
    chosen: (other, text) => moveTo(found, other, text),
  });
}

function moveTo(found, other, text) {
  const says = `${plural(found.images.length, "image", "images")} → ${other === null ? text || "a new category" : name(other)}`;
  finish();
  send("/api/act", { act: "move", images: found.images, to: other === null ? null : state.categories[other].id, name: text }, says);
}

// What a name can be given to, the usual one first. own: they become a category of their own; rest: images that stay to review
function scopes(found) {
  const [c] = found.categories, one = state.categories[c], all = state.members[c], count = (images) => images.length.toLocaleString("en");
  if (one.known) return [{ text: `Its name only: ${count(all)} images stay as they are.`, images: all }];
  if (one.status === ACCEPTED && found.whole) return [{ text: `Its name only: its ${count(all)} images stay as they are.`, images: all }];
  const certain = all.filter((image) => state.about.confidence[image] >= CERTAIN && (state.trust[c] == null || state.certain[image] !== "0")), offered = [];
  if (!found.whole) offered.push({ text: `the ${count(found.images)} selected, as a category of their own`, images: found.images, own: true });
  offered.push({ text: `all ${count(all)} images`, images: all });
  if (certain.length && certain.length < all.length) offered.push({ text: `the ${count(certain)} certain ones; the other ${(all.length - certain.length).toLocaleString("en")} stay to review`, images: certain, rest: all.length - certain.length });
  return offered;
}

// What has no dialog is done to images that are in sight: a selection that is not is shown first.
function showsSelection(found) {
  if (!state.selected.size || found.images.some((image) => grid.inSight(image))) return false;
  const [image] = found.images;
  if (!grid.has(image)) goTo(state.category[image]);
  moveCursor(image, true, "centre");
  toast(`${plural(found.images.length, "image is", "images are")} selected: the same key again, or Esc`);
  return true;
}

function judge(act, word) {
  const found = target();
  if (!found || showsSelection(found)) return;
  const whole = found.whole && !(act === "reject" && found.categories.some(known));
  const says = `${about(found)} ${word}`;
  finish();
  send("/api/act", whole ? { act, categories: ids(found.categories) } : { act, images: found.images }, says);
}

async function likeThis() {
  const found = picked();
  if (!found) return;
  if (!state.features) { toast(state.note, true); return; }
  try {
    const answer = await ask("/api/like", { images: found.images });
    state.like = { images: answer.images, similarity: answer.similarity, cut: Math.min(answer.alike, answer.similarity[Math.min(answer.images.length, found.images.length + 1) - 1]) };
    drawAll();
    by("grid").scrollTop = 0;
    selectLike();
    moveCursor(found.images[0]);
  } catch (error) { toast(error.message, true); }
}
function selectLike() {
  const { images, similarity, cut } = state.like;
  select(images.filter((_, i) => similarity[i] >= cut), "one");
}
function leaveLike() {
  state.like = null;
  drawAll();
  if (state.cursor !== null) grid.reveal(state.cursor, "centre");
  paint();
}

// Suggestions: the best one that is not answered stands above the grid, with the images of both sides.

const suggested = { version: -1, list: [], doubts: [], refused: new Set() };
const called = (one) => `${one.kind} ${one.categories.join(" ")}`;
const sizes = (one) => one.categories.map((c) => state.members[c].length).join(" ");

function takeSuggestions({ version, suggestions, trust, certain, doubts = suggested.doubts }) {
  suggested.version = version;
  state.trust = trust;
  state.certain = certain;
  grid.refresh(); // its headers say how far a category is to be trusted
  suggested.doubts = doubts;
  by("doubts").hidden = !doubts.length;
  by("doubts").textContent = `${plural(doubts.length, "label looks", "labels look")} wrong`;
  if (by("labels").open) drawDoubts();
  suggested.list = suggestions.map((one) => ({ ...one, sizes: sizes(one) }));
  drawSuggestion();
}

// Those that are about categories as they are now.
const unanswered = () => suggested.list.filter((one) => one.sizes === sizes(one) && !suggested.refused.has(called(one)));

// What lives on first: a known class, else one with a name, else the larger one.
function sides(one) {
  const [c, other] = one.categories, { members, categories } = state;
  if (one.kind === "split") {
    const leaves = new Set(one.images);
    return [members[c].filter((image) => !leaves.has(image)), one.images];
  }
  const weight = (a) => [known(a), name(a) !== categories[a].id, members[a].length];
  const [a, b] = [weight(c), weight(other)], at = a.findIndex((each, i) => each !== b[i]);
  return at >= 0 && a[at] < b[at] ? [members[other], members[c]] : [members[c], members[other]];
}

function drawSuggestion() {
  const list = unanswered(), [one] = list, place = by("suggestion");
  place.hidden = !one || Boolean(state.like);
  if (place.hidden) { place.replaceChildren(); return; }
  const [stays, goes] = sides(one), near = state.similarity ?? state.about.confidence;
  const strip = (images) => make("span", { class: "strip" }, ...[...images].sort((a, b) => near[b] - near[a]).slice(0, 5).map((image) => make("img", { src: thumb(image), alt: "", title: state.about.path[image], width: 56, height: 56 })));
  const says = one.kind === "split" ? `${name(one.categories[0])} looks like two: ${stays.length} + ${goes.length}` : `${name(state.category[stays[0]])} and ${name(state.category[goes[0]])} may be one: ${stays.length} + ${goes.length}`;
  place.replaceChildren(
    make("div", { class: "titles" }, make("strong", {}, says), make("small", {}, `suggestion 1 of ${list.length}, right in about ${Math.round(10 * one.probability)} of 10`)),
    make("span", { class: "pair" }, strip(stays), make("span", { "aria-hidden": "true" }, "+"), strip(goes)),
    make("div", { class: "group" },
      make("button", { type: "button", id: "yes", class: "main", onclick: acceptSuggestion }, one.kind === "split" ? "Split " : "Merge ", make("kbd", {}, "Y")),
      make("button", { type: "button", id: "not", onclick: refuseSuggestion }, "Not ", make("kbd", {}, "X")),
      make("button", { type: "button", onclick: () => goTo(state.category[goes[0]]) }, "Show")));
}

// Labels that look wrong: each with its image, what it is called, and what its neighbours are called.
function drawDoubts() {
  const dialog = by("labels"), { examples, path } = state.about, { doubts } = suggested;
  const options = state.categories.filter((one) => !one.gone && (one.known || one.name !== one.id));
  const called = (id) => options.find((one) => one.id === id)?.name ?? id;
  const faces = (id, but) => make("span", { class: "faces", "aria-hidden": "true" }, ...(examples[id] || []).filter((image) => image !== but).slice(0, 3).map((image) => make("img", { src: thumb(image), alt: "", width: 36, height: 36 })));
  const correct = (one, to, says) => { suggested.doubts = doubts.filter((each) => each !== one); drawDoubts(); send("/api/act", { act: "label", images: [one.image], to }, says); };
  const row = (one) => make("li", {},
    make("img", { src: thumb(one.image), alt: path[one.image], title: path[one.image], width: 96, height: 96 }),
    make("div", {}, make("p", {}, "labelled ", make("b", {}, called(one.label)), faces(one.label, one.image)), make("p", {}, "its neighbours are ", make("b", {}, called(one.neighbours)), faces(one.neighbours, one.image), ` ${Math.round(100 * one.certainty)} %`),
      make("div", { class: "bar" },
        make("button", { type: "button", class: "main", onclick: () => correct(one, one.neighbours, `is ${called(one.neighbours)} now`) }, `It is ${called(one.neighbours)}`),
        make("button", { type: "button", onclick: () => correct(one, one.label, `stays ${called(one.label)}`) }, "The label is right"),
        make("select", { "aria-label": `another label of ${path[one.image]}`, onchange: (event) => { if (event.target.value) correct(one, event.target.value === "-" ? null : options[Number(event.target.value)].id, "label changed"); } },
          make("option", { value: "" }, "another …"), make("option", { value: "-" }, "no label"), ...options.map((each, i) => make("option", { value: i }, each.name))))));
  dialog.replaceChildren(make("h2", { id: "wrong" }, `${plural(doubts.length, "label looks", "labels look")} wrong`),
    make("p", { class: "hint" }, "The nearest labelled images have another label, by the features before training. What is corrected here is learned by debgcd train --from; U takes it back."),
    make("ul", {}, ...doubts.map(row)), make("div", { class: "bar" }, make("button", { type: "button", onclick: () => dialog.close() }, "Close ", make("kbd", {}, "Esc"))));
  if (!dialog.open) dialog.showModal();
}

function acceptSuggestion() {
  const [one] = unanswered();
  if (!one) { toast("There is no suggestion"); return; }
  const [stays, goes] = sides(one), into = state.category[stays[0]], gone = state.category[goes[0]];
  finish();
  if (one.kind === "split") send("/api/act", { act: "split", category: state.categories[into].id, parts: [goes] }, `${name(into)} split; U takes it back`);
  else send("/api/act", { act: "merge", categories: ids([gone]), into: state.categories[into].id }, `${name(gone)} merged into ${name(into)}; U takes it back`);
}

function refuseSuggestion() {
  const [one] = unanswered();
  if (one) suggested.refused.add(called(one));
  drawSuggestion();
  by("grid").focus({ preventScroll: true });
}

// The image to label next: of those whose answers teach most, or, while there are no features, the most doubtful one.
async function nextToLabel() {
  const { lead } = state.about, left = (i) => state.status[i] === OPEN && !state.walked.has(i);
  if (state.features && !state.teach.some(left)) {
    try { state.teach = (await ask("/api/teach", {})).images; } catch (error) { toast(error.message, true); return; }
  }
  let best = state.teach.find(left) ?? null;
  for (let pass = 0; pass < 2 && best === null; pass++) {
    for (let i = 0; i < lead.length; i++) if (left(i) && (best === null || lead[i] < lead[best])) best = i;
    if (best === null) state.walked.clear(); // all were shown: from the beginning
  }
  if (best === null) { toast("Every image is reviewed"); return; }
  state.walked.add(best);
  state.like = null;
  if (!grid.has(best)) { by("show").value = "all"; by("find").value = ""; }
  drawAll();
  select([best], "one");
  moveCursor(best, true, "centre");
  by("grid").focus({ preventScroll: true });
  toast(`${name(state.category[best])}? The model gives it ${percentOf(state.about.confidence[best])}${rival(best)}`);
}

// The category that the model found next most probable, and its probability.
function rival(image) {
  const { second, lead, confidence } = state.about;
  return second[image] === null || state.categories[second[image]].gone ? "" : `, next ${name(second[image])} ${percentOf(confidence[image] - lead[image])}`;
}

function nextCategory(way) {
  const shown = shownCategories(), here = shown.indexOf(current());
  const next = shown[(here + way + shown.length) % shown.length];
  if (next !== undefined) goTo(next);
}

async function orderBySimilarity() {
  if (!state.features) { toast(`Ordered by confidence: ${state.note}`); return; }
  try {
    state.similarity = (await ask("/api/similarity")).similarity;
    arrange();
    if (!by("grid").scrollTop && !state.selected.size) moveCursor(grid.sections[0]?.items[0], false); // nothing was begun yet
  } catch (error) { toast(error.message, true); }
}

function drawActs() {
  const found = target();
  const says = !found ? "" : state.selected.size ? `${plural(found.images.length, "image", "images")} selected${found.categories.length > 1 ? ` in ${found.categories.length} categories` : ""}` : `${name(found.categories[0])}: ${found.whole ? "" : `${found.images.length.toLocaleString("en")} of `}${plural(state.members[found.categories[0]].length, "image", "images")}`;
  if (!by("acts").childElementCount) {
    by("acts").append(make("span", { id: "says", "aria-live": "polite" }), ...Object.entries(acts).map(([id, act]) => make("button", { type: "button", id: `act-${id}`, title: act.help, onclick: () => { act.work(); } }, act.text, " ", make("kbd", {}, act.key.toUpperCase()))),
      make("button", { type: "button", id: "clear", onclick: () => escape() }, "Clear ", make("kbd", {}, "Esc")));
  }
  by("says").textContent = says;
  by("clear").hidden = !state.selected.size && !state.like;
}

function escape() {
  if (state.like) leaveLike();
  clear();
  by("grid").focus({ preventScroll: true });
}

let fading = null;
function toast(text, bad = false) {
  clearTimeout(fading);
  by("toast").textContent = text;
  by("toast").className = bad ? "bad shown" : "shown";
  fading = setTimeout(() => { by("toast").className = ""; }, bad ? 7000 : 3500);
}

// Dialogs.

for (const dialog of document.querySelectorAll("dialog")) {
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.addEventListener("close", () => { // comes late: by now it may be open again, or the next key may have moved the focus
    if (dialog.open) return;
    dialog.replaceChildren();
    if (document.activeElement === document.body) by("grid").focus({ preventScroll: true });
  });
}

// The images that an act is about: how many, those nearest to what they have in common, and those that are least certain.
function faces(images) {
  const { confidence, lead } = state.about, near = state.similarity ?? confidence, few = images.length <= 2 * FACES;
  const strip = (says, some) => make("figure", {}, make("figcaption", {}, says), make("div", { class: "strip" }, ...some.map((image) => make("img", { src: thumb(image), alt: "", title: state.about.path[image], width: 56, height: 56 }))));
  const typical = [...images].sort((a, b) => near[b] - near[a] || a - b), doubtful = [...images].sort((a, b) => lead[a] - lead[b] || a - b);
  return few ? [strip(plural(images.length, "image", "images"), typical)] : [strip(`most typical of ${images.length.toLocaleString("en")} images`, typical.slice(0, FACES)), strip("least certain", doubtful.slice(0, FACES))];
}

// Which images a name is given to.
function scopeFields(scopes, changed) {
  if (scopes.length < 2) return make("p", { class: "scope" }, scopes[0].own || scopes[0].text.startsWith("Its") ? scopes[0].text : `Naming accepts ${scopes[0].text}.`);
  return make("fieldset", { class: "scope" }, make("legend", {}, "Naming accepts"), ...scopes.map((scope, i) => make("label", {}, make("input", { type: "radio", name: "scope", checked: i === 0 ? "" : null, onchange: () => changed(scope) }), " ", scope.text)));
}

// A category, found by typing; or a text that is none. which(c): offered; chosen(c or null, text, scope);
// free(text, scope): what a text of its own means, null if nothing; scopes: see `scopes`
async function choose({ title, found, scopes = null, start = "", which, says, free = null, chosen }) {
  const dialog = by("chooser"), about = make("div", { class: "about" });
  let scope = scopes?.[0] ?? { images: found.images };
  const show = () => about.replaceChildren(...faces(scope.images));
  let order = state.order.filter((c) => !state.categories[c].gone && state.categories[c].status !== REJECTED && (state.members[c].length || known(c))).filter(which), shown = [], at = 0;
  const input = make("input", { id: "text", type: "text", role: "combobox", "aria-expanded": "true", "aria-controls": "options", "aria-autocomplete": "list", "aria-labelledby": "asks", autocomplete: "off", maxlength: 200, spellcheck: "false", placeholder: free ? "a name, or a category" : "a category" });
  const list = make("ul", { id: "options", role: "listbox", "aria-label": "categories" });
  const heads = (c) => [...(state.about.examples[state.categories[c].id] || []), ...state.members[c]].slice(0, 3);
  const draw = () => {
    const text = input.value.trim(), low = text.toLowerCase();
    const hits = order.filter((c) => name(c).toLowerCase().includes(low) || state.categories[c].id.toLowerCase().includes(low));
    hits.sort((a, b) => name(b).toLowerCase().startsWith(low) - name(a).toLowerCase().startsWith(low));
    const exact = order.find((c) => name(c) === text || state.categories[c].id === text);
    shown = hits.slice(0, 60);
    if (free && exact === undefined) shown.unshift(null); // the text itself comes first: what was typed is what Enter takes
    at = Math.max(0, exact === undefined ? 0 : shown.indexOf(exact));
    list.replaceChildren(...shown.map((c, i) => make("li", { role: "option", id: `option-${i}`, "aria-selected": String(i === at), onclick: () => { at = i; done(); } },
      ...(c === null ? [make("span", { class: "plus", "aria-hidden": "true" }, "+"), make("span", { class: "name" }, free(text, scope) ?? "type a name")]
        : [make("span", { class: "faces", "aria-hidden": "true" }, ...heads(c).map((image) => make("img", { src: thumb(image), alt: "", width: 36, height: 36 }))), make("span", { class: "name" }, make("small", {}, `${says} `), mark(state.categories[c]), " ", name(c)), make("small", { class: "count" }, state.members[c].length)]))));
    if (!shown.length) list.append(make("li", { role: "option", "aria-disabled": "true", "aria-selected": "false", class: "none" }, "no such category"));
    input.setAttribute("aria-activedescendant", `option-${at}`);
  };
  const done = () => {
    if (!shown.length) return;
    const text = input.value.trim(), c = shown[at];
    if (c === null && free(text, scope) === null) return;
    dialog.close();
    chosen(c, c === null ? text : "", scope);
  };
  input.addEventListener("input", draw);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") { event.preventDefault(); done(); }
    if (event.key === "Tab" && !event.shiftKey && shown[at] != null) { event.preventDefault(); input.value = name(shown[at]); draw(); }
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    event.preventDefault();
    at = (at + (event.key === "ArrowDown" ? 1 : -1) + shown.length) % Math.max(1, shown.length);
    [...list.children].forEach((option, i) => option.setAttribute("aria-selected", i === at));
    list.children[at]?.scrollIntoView({ block: "nearest" });
    input.setAttribute("aria-activedescendant", `option-${at}`);
  });
  show();
  const fields = scopes && scopeFields(scopes, (one) => { scope = one; show(); draw(); });
  dialog.replaceChildren(make("h2", { id: "asks" }, title), about, ...(fields ? [fields] : []), input, list, make("p", { class: "hint" }, make("kbd", {}, "↑↓"), " choose ", make("kbd", {}, "Tab"), " complete ", make("kbd", {}, "Enter"), " done"), make("div", { class: "bar" }, make("button", { type: "button", onclick: () => dialog.close() }, "Cancel ", make("kbd", {}, "Esc"))));
  dialog.showModal();
  input.value = start;
  input.focus(); // not the first choice of what is accepted
  input.select();
  draw();
  if (!state.features) return;
  try { // what looks most alike first
    const { categories } = await ask("/api/near", { images: found.images.slice(0, 5000) });
    const rank = new Map(categories.map((id, i) => [id, i]));
    order = [...order].sort((a, b) => rank.get(state.categories[a].id) - rank.get(state.categories[b].id));
    if (dialog.open && at === 0) draw();
  } catch { /* any order will do */ }
}

function split(found) {
  const dialog = by("splitter"), [c] = found.categories;
  let parts = null, asked = 0;
  const slider = make("input", { type: "range", id: "parts", min: 2, max: Math.min(8, found.images.length), value: 2, "aria-label": "number of parts" });
  const number = make("output", { for: "parts" }, "2"), place = make("div", { id: "preview", "aria-live": "polite" }), go = make("button", { type: "button", id: "accept-split", class: "main", disabled: true }, "Split ", make("kbd", {}, "Enter"));
  const draw = async () => {
    const mine = ++asked;
    number.textContent = slider.value;
    parts = null;
    go.disabled = true;
    if (!state.features) { // not yet, or never: the note says which
      place.replaceChildren(make("p", { class: "warn" }, state.note));
      setTimeout(() => { if (dialog.open && mine === asked) draw(); }, 500);
      return;
    }
    try {
      const answer = await ask("/api/split", { images: found.images, parts: Number(slider.value) });
      if (mine !== asked) return;
      parts = answer.parts;
      go.disabled = false;
      place.replaceChildren(...parts.map((part, i) => make("section", {}, make("h3", {}, i ? `new category, ${plural(part.length, "image", "images")}` : `stays in ${name(c)}, ${plural(part.length, "image", "images")}`), make("div", { class: "strip" }, ...part.slice(0, 24).map((image) => make("img", { src: thumb(image), alt: "", width: 72, height: 72 }))))));
    } catch (error) {
      if (mine === asked) place.replaceChildren(make("p", { class: "warn" }, error.message));
    }
  };
  const done = () => {
    if (!parts) return;
    const rest = parts.slice(1);
    dialog.close();
    finish();
    send("/api/act", { act: "split", category: state.categories[c].id, parts: rest }, `${name(c)} split into ${rest.length + 1} parts`);
  };
  slider.addEventListener("input", draw);
  go.addEventListener("click", done);
  dialog.onkeydown = (event) => { if (event.key === "Enter" && event.target !== go && event.target.tagName !== "BUTTON") { event.preventDefault(); done(); } };
  dialog.replaceChildren(make("h2", { id: "splits" }, `Split ${about(found)}`), make("label", { class: "pick" }, "parts ", slider, number), place, make("div", { class: "bar" }, go, make("button", { type: "button", onclick: () => dialog.close() }, "Cancel ", make("kbd", {}, "Esc"))));
  dialog.showModal();
  slider.focus();
  draw();
}

function view(image) {
  const dialog = by("viewer"), { about, status } = state;
  const facts = make("dl", {});
  const add = (term, text) => facts.append(make("dt", {}, term), make("dd", {}, text));
  add("file", about.path[image]);
  add("category", `${name(state.category[image])} (${known(state.category[image]) ? "known class" : "new category"}), ${WORDS[status[image]]}`);
  add("confidence", `${percentOf(about.confidence[image])}${rival(image)}`);
  if (about.novelty[image] !== null) add("novelty", percentOf(about.novelty[image]));
  if (about.added[image]) add("came with batch", about.added[image]);
  const picture = make("img", { src: `/picture/${image}?${about.key}`, alt: about.path[image] });
  picture.addEventListener("error", async () => {
    const why = await fetch(`/picture/${image}?${about.key}`).then((answer) => answer.text(), () => "the server does not answer");
    picture.replaceWith(make("p", { class: "warn" }, why));
  });
  const step = (by) => { const next = grid.step(image, by); if (next !== null && next !== image) { moveCursor(next); view(next); } };
  dialog.onkeydown = (event) => {
    if (event.key.startsWith("Arrow")) { event.preventDefault(); step(event.key); }
    if (event.key === " ") { event.preventDefault(); toggle(image); view(image); }
    const act = Object.values(acts).find((one) => one.key === event.key.toLowerCase());
    if (act && !event.ctrlKey && !event.metaKey && !event.altKey) { event.preventDefault(); dialog.close(); if (!state.selected.has(image)) select([image], "one"); act.work(); }
  };
  dialog.replaceChildren(make("div", { class: "full" }, picture), facts, make("div", { class: "bar" },
    make("button", { type: "button", onclick: () => step("ArrowLeft") }, "‹ Previous"), make("button", { type: "button", onclick: () => step("ArrowRight") }, "Next ›"),
    make("button", { type: "button", "aria-pressed": String(state.selected.has(image)), onclick: () => { toggle(image); view(image); } }, "Select ", make("kbd", {}, "Space")),
    make("button", { type: "button", onclick: () => dialog.close() }, "Close ", make("kbd", {}, "Esc"))));
  if (dialog.open) dialog.focus(); // the button that had the focus is gone, and with it the keys
  else dialog.showModal();
  why(image, dialog);
}

// Why an image is where it is: what it is most like, with the cosine.
async function why(image, dialog) {
  if (!state.features) return;
  const { second, label, path, key } = state.about, rival = second[image], place = make("div", { class: "why" });
  dialog.querySelector("dl").after(place);
  try {
    const found = await ask("/api/why", { images: [image], rival });
    const tell = (other) => (other >= state.category.length ? label[other] : name(state.category[other]));
    const strip = (says, some) => make("figure", {}, make("figcaption", {}, says), make("div", { class: "strip" }, ...some.map(([other, near]) => make("span", { class: "near" }, make("img", { src: thumb(other), alt: path[other], title: `${path[other]}: ${tell(other)}`, width: 56, height: 56 }), make("small", {}, (near / 1000).toFixed(2))))));
    const groups = [["nearest labelled images", found.labelled, true], [`nearest of ${name(state.category[image])}`, found.own], rival === null ? null : [`nearest of ${name(rival)}, the runner-up`, found.rival ?? []]];
    const map = make("img", { src: `/where/${image}?${key}`, alt: "what the network sees, bright where it looks", width: 160, height: 160 });
    const where = make("figure", { class: "where" }, make("figcaption", {}, "where the network looks"), map);
    map.addEventListener("error", () => where.remove()); // not every network can tell
    place.replaceChildren(where, make("div", {}, ...groups.filter((one) => one && one[1].length).map(([says, some, names]) => strip(names ? `${says}: ${[...new Set(some.map(([other]) => tell(other)))].join(", ")}` : says, some))));
  } catch { /* the facts are there without it */ }
}

const KEYS = [
  ["Arrows, Page Up/Down, Home, End", "move; with Shift, select on the way"], ["Space", "select or not"], ["Ctrl+A or *", "select the whole category"], ["Enter", "look at the image closely"], ["Esc", "clear the selection"],
  ...Object.values(acts).map((act) => [act.key.toUpperCase(), act.help]),
  ["Y / X", "do what is suggested above the images / not"],
  ["D", "label next: an image whose answer teaches most"], ["J / Shift+J", "next / previous category"], ["U, Ctrl+Z / Shift+U, Ctrl+Y", "undo / redo, without limit"],
  ["O", "order: similarity, doubt, novelty"], ["/", "find a category"], ["+ / −", "larger / smaller"], ["?", "this sheet"],
];
function sheet() {
  const dialog = by("keys");
  dialog.replaceChildren(make("h2", { id: "sheet" }, "Keys"), make("table", {}, make("tbody", {}, ...KEYS.map(([key, help]) => make("tr", {}, make("th", { scope: "row" }, make("kbd", {}, key)), make("td", {}, help))))),
    make("p", {}, "Mouse: click, Ctrl-click, Shift-click, drag a box; double-click to look closely. On a phone: tap to select, hold to look closely."),
    make("p", {}, "Without a selection, an act is about the category of the cursor. Every act is saved at once as a line of decisions.jsonl."),
    make("div", { class: "bar" }, make("button", { type: "button", onclick: () => dialog.close() }, "Close")));
  dialog.showModal();
  dialog.scrollTop = 0; // the button at the end has the focus
}

// Keys.

const undo = () => { finish(); send("/api/undo", {}, "undone"); };
const redo = () => { finish(); send("/api/redo", {}, "done again"); };
function zoom(by) {
  grid.size = Math.max(64, Math.min(256, Math.round(grid.size * by)));
  grid.fit(true);
  if (state.cursor !== null) grid.reveal(state.cursor, "centre");
}
function cycle() {
  const order = by("order");
  order.selectedIndex = (order.selectedIndex + 1) % order.options.length;
  order.dispatchEvent(new Event("change"));
}
const keys = {
  y: acceptSuggestion, x: refuseSuggestion, d: nextToLabel, u: undo, U: redo, j: () => nextCategory(1), J: () => nextCategory(-1), o: cycle, "?": sheet, "+": () => zoom(1.25), "=": () => zoom(1.25), "-": () => zoom(0.8),
  "/": () => { if (!by("menu").hidden) openMenu(); by("find").focus(); by("find").select(); }, "*": () => { if (state.cursor !== null) select(grid.sections[grid.find(state.cursor)[0]].items, "one"); }, Escape: escape,
  Enter: () => { if (state.cursor !== null) view(state.cursor); }, " ": () => { if (state.cursor !== null) { toggle(state.cursor); state.anchor = state.cursor; } },
  ...Object.fromEntries(Object.values(acts).map((act) => [act.key, act.work])),
};
document.addEventListener("keydown", (event) => {
  if (!state.about || document.querySelector("dialog[open]")) return;
  const inside = event.target.closest("input, select, textarea"), command = event.ctrlKey || event.metaKey;
  if (event.key === "Escape" && inside) { by("find").value = ""; drawAll(); closeMenu(); by("grid").focus(); return; }
  if (inside) { if (event.key === "Enter" && inside === by("find")) { const first = shownCategories()[0]; if (first !== undefined) { closeMenu(); goTo(first); } } return; }
  if (event.target.closest("button") && (event.key === "Enter" || event.key === " ")) return;
  if (event.altKey) return;
  let work = null;
  if (command) work = { z: event.shiftKey ? redo : undo, Z: redo, y: redo, a: keys["*"] }[event.key];
  else if (/^(Arrow|Page|Home|End)/.test(event.key)) {
    work = () => {
      const next = grid.step(state.cursor, event.key);
      if (event.shiftKey) {
        state.anchor ??= state.cursor;
        moveCursor(next);
        select(grid.range(state.anchor, next), "one");
      } else { state.anchor = null; moveCursor(next); }
    };
  } else work = keys[event.key] ?? keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!work) return;
  event.preventDefault();
  work();
});

// The page around it.

function openMenu() { document.body.classList.add("menu"); by("menu").setAttribute("aria-expanded", "true"); }
function closeMenu() { document.body.classList.remove("menu"); by("menu").setAttribute("aria-expanded", "false"); }
by("menu").addEventListener("click", () => (document.body.classList.contains("menu") ? closeMenu() : openMenu()));
by("undo").addEventListener("click", undo);
by("redo").addEventListener("click", redo);
by("doubtful").addEventListener("click", nextToLabel);
by("help").addEventListener("click", sheet);
by("doubts").addEventListener("click", drawDoubts);
by("show").addEventListener("change", () => { state.like = null; by("grid").scrollTop = 0; drawAll(); by("grid").focus(); });
by("order").addEventListener("change", async () => {
  const here = current();
  if (by("order").value === "similarity") await orderBySimilarity(); else arrange();
  if (!state.like && here !== null) goTo(here); // the images are others now, the category is the same
});
by("find").addEventListener("input", () => { state.like = null; by("grid").scrollTop = 0; drawAll(); });
by("theme").addEventListener("click", () => {
  const root = document.documentElement, dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});

async function begin() {
  if (location.search) history.replaceState(null, "", "/"); // the token stays out of the history
  if (matchMedia("(max-width: 700px)").matches) grid.size = 88;
  const [facts, changes] = await Promise.all([ask("/api/about"), ask("/api/changes?since=-1")]);
  state.about = facts;
  state.low = facts.path.map((path) => path.toLowerCase());
  document.title = `${facts.run} – debgcd review`;
  by("title").textContent = facts.run;
  const count = facts.confidence.length;
  state.category = new Int32Array(count).fill(-1); // nowhere yet
  state.status = new Uint8Array(count);
  state.members = changes.categories.map(() => []);
  if (!facts.novelty.some((one) => one !== null)) by("order").querySelector("[value=novelty]").remove();
  const size = new Int32Array(changes.categories.length);
  for (const c of changes.category) size[c]++;
  state.order = changes.categories.map((_, c) => c).sort((a, b) => changes.categories[a].known - changes.categories[b].known || size[b] - size[a] || a - b);
  take(changes);
  if (changes.problems.length) toast(`Some acts of the log do not apply: ${changes.problems.join("; ")}`, true);
  moveCursor(grid.sections[0]?.items[0] ?? null, false);
  by("grid").focus();
  document.documentElement.dataset.ready = "yes";
  setTimeout(poll, 1500);
}
begin().catch((error) => toast(error.message, true));
