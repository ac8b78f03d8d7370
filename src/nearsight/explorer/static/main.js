// The page: what is chosen, and who is told when it changes.

import * as api from "./api.js";
import { drawRamp } from "./colors.js";
import { element } from "./draw.js";
import { saveJson, savePlayground, savePlaygroundPng, savePng } from "./export.js";
import { Pane } from "./pane.js";
import { PictureView } from "./picture.js";
import { Playground } from "./playground.js";

const by = (id) => document.getElementById(id);
const view = { part: "mixed", scale: "log", layer: 1, head: 0, query: { row: 0.5, col: 0.5 }, picture: null };
let panes = [];
let models = [];
let playground = null;

const picture = new PictureView(by("stage"), (query, pinned) => ask(query, pinned));

// Queries: at most one request on its way; the newest query that came meanwhile goes next.
let asking = false;
let next = null;

async function ask(query, pinned) {
  const unchanged = query.row === view.query.row && query.col === view.query.col;
  if (unchanged && !pinned) return;
  next = { query, pinned, since: performance.now() };
  if (asking) return;
  asking = true;
  while (next) {
    const wanted = next;
    next = null;
    try {
      await Promise.all(panes.map((pane) => pane.fetchMaps(wanted.query)));
      view.query = wanted.query;
      draw();
      by("latency").textContent = `${Math.round(performance.now() - wanted.since)} ms from patch to maps`;
      by("latency").dataset.milliseconds = String(performance.now() - wanted.since);
      if (wanted.pinned) announce();
    } catch (error) {
      fail(error);
    }
  }
  asking = false;
}

function draw() {
  for (const pane of panes) pane.draw();
  const first = panes[0];
  if (!first || !first.inspection) return;
  const layer = first.inspection.layers[first.layer];
  const overlay = by("overlay").checked && { layer, weights: first.weights(first.layer, first.head), scale: view.scale };
  picture.draw(view.query, overlay, first.inspection.predictions);
  const depth = Math.max(...panes.filter((pane) => pane.inspection).map((pane) => pane.inspection.layers.length));
  by("layer").max = String(depth);
  by("layer").value = String(view.layer + 1);
  by("layer-value").textContent = `${view.layer + 1} of ${depth}`;
  const [rows, cols] = picture.layer.query_grid;
  by("where").textContent = `patch in row ${Math.floor(view.query.row * rows) + 1} of ${rows}, column ${Math.floor(view.query.col * cols) + 1} of ${cols}`;
}

function announce() {
  by("announce").textContent = panes.filter((pane) => pane.inspection).map((pane) => pane.sentence()).join(" ");
}

function fail(error) {
  by("message").textContent = error.message;
}

async function showPicture(id) {
  by("message").textContent = "";
  view.picture = id;
  for (const button of by("samples").children) button.setAttribute("aria-pressed", String(button.dataset.id === id));
  await Promise.all(panes.map((pane) => pane.load(id)));
  await refreshPicture();
}

/** The picture as the first model sees it: its size and its grid may differ from another's. */
async function refreshPicture() {
  const first = panes[0];
  if (!first.inspection) return;
  picture.show(await api.picture(first.inspection), first.inspection.layers[0]);
  view.query = picture.query;
  await Promise.all(panes.map((pane) => pane.fetchMaps(view.query)));
  draw();
  by("look").dataset.ready = first.inspection.id;
}

function addPane(model) {
  const pane = new Pane(models, model, view, {
    changed: () => (pane === panes[0] ? refreshPicture().catch(fail) : draw()),
    chosen: (layer, head) => choose(layer, head),
    failed: fail,
  });
  panes.push(pane);
  by("panes").append(pane.root);
  return pane;
}

function choose(layer, head) {
  view.layer = layer;
  view.head = head;
  draw();
  announce();
}

async function compare(wanted) {
  by("panes").classList.toggle("two", wanted);
  if (wanted && panes.length === 1) {
    await addPane(models.length > 1 ? (panes[0].modelId + 1) % models.length : 0).load(view.picture);
    draw();
  } else if (!wanted && panes.length === 2) {
    panes.pop().root.remove();
    draw();
  }
}

async function receive(file) {
  by("message").textContent = "";
  try {
    const kept = await api.upload(file);
    addSample(kept, true);
    await showPicture(kept.id);
  } catch (error) {
    fail(error);
  }
}

function addSample({ id, name }, first) {
  const button = element("button", { type: "button", "data-id": id, "aria-pressed": "false", "aria-label": name, title: name }, element("img", { src: api.thumbnail(id), alt: "", loading: "lazy", width: 48, height: 48 }));
  button.addEventListener("click", () => showPicture(id).catch(fail));
  by("samples")[first ? "prepend" : "append"](button);
}

function wire() {
  by("parts").addEventListener("change", (event) => { view.part = event.target.value; draw(); announce(); });
  by("scales").addEventListener("change", (event) => { view.scale = event.target.value; draw(); });
  by("layer").addEventListener("input", () => choose(Number(by("layer").value) - 1, view.head));
  by("overlay").addEventListener("change", draw);
  by("compare").addEventListener("change", (event) => compare(event.target.checked).catch(fail));
  by("file").addEventListener("change", (event) => event.target.files[0] && receive(event.target.files[0]));
  const playing = () => !by("play").hidden;
  by("save-png").addEventListener("click", () => (playing() ? savePlaygroundPng(playground) : savePng(view, panes, picture)));
  by("save-json").addEventListener("click", () => (playing() ? savePlayground(playground) : saveJson(view, panes)));
  document.addEventListener("keydown", shortcut);
  wireDrops();
  wireTabs();
  wireTheme();
}

function shortcut(event) {
  if (event.target.closest("input, select, textarea") && event.target.type !== "checkbox" && event.target.type !== "radio") return;
  if (event.ctrlKey || event.metaKey || event.altKey || by("look").hidden) return;
  const steps = { PageUp: -1, PageDown: 1 };
  if (steps[event.key]) {
    event.preventDefault();
    choose(Math.min(Math.max(view.layer + steps[event.key], 0), Number(by("layer").max) - 1), view.head);
  } else if ("123".includes(event.key)) {
    by("parts").querySelectorAll("input")[Number(event.key) - 1].click();
  }
}

function wireDrops() {
  const holdsFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  document.addEventListener("dragover", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    by("curtain").hidden = false;
  });
  document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) by("curtain").hidden = true; });
  document.addEventListener("drop", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    by("curtain").hidden = true;
    if (event.dataTransfer.files[0]) receive(event.dataTransfer.files[0]);
  });
}

function wireTabs() {
  const tabs = [by("tab-look"), by("tab-play")];
  const show = (chosen) => {
    for (const tab of tabs) {
      tab.setAttribute("aria-selected", String(tab === chosen));
      tab.tabIndex = tab === chosen ? 0 : -1;
      by(tab.getAttribute("aria-controls")).hidden = tab !== chosen;
    }
    if (chosen === tabs[1]) playground.open(panes[0], picture);
  };
  for (const [index, tab] of tabs.entries()) {
    tab.addEventListener("click", () => show(tab));
    tab.addEventListener("keydown", (event) => {
      if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
      tabs[1 - index].focus();
      show(tabs[1 - index]);
    });
  }
}

function wireTheme() {
  const names = { auto: "as the system", light: "light", dark: "dark" };
  const order = Object.keys(names);
  const apply = (name) => {
    if (name === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
    by("theme").setAttribute("aria-label", `Colours: ${names[name]}`);
    by("theme").title = `Colours: ${names[name]}`;
    localStorage.setItem("theme", name);
  };
  let name = order.includes(localStorage.getItem("theme")) ? localStorage.getItem("theme") : "auto";
  apply(name);
  by("theme").addEventListener("click", () => { name = order[(order.indexOf(name) + 1) % order.length]; apply(name); });
}

async function start() {
  drawRamp(by("ramp"));
  playground = new Playground(by("play"));
  wire();
  models = await api.models();
  for (const sample of await api.samples()) addSample(sample, false);
  addPane(0);
  if (models.length > 1) {
    by("compare").checked = true;
    by("panes").classList.add("two");
    addPane(1);
  } else {
    by("compare-label").hidden = models[0].snapshots.length < 2;
  }
  await showPicture(by("samples").firstElementChild.dataset.id);
}

start().catch(fail);
