// One model: its maps for the query, one layer large, all layers small.

import * as api from "./api.js";
import { gateColor, gateInk } from "./colors.js";
import { element, paintMap, peakOf, queryCell, svg } from "./draw.js";

const KINDS = { plain: "self-attention", psa: "PSA", gpsa: "GPSA", local: "local window" };
const SHORT = { plain: "SA", psa: "PSA", gpsa: "GPSA", local: "local" };
const PLAY_PAUSE = 500;

export class Pane {
  /** `view` is the page's state (part, scale, layer, head, query); `on` has changed(), chosen(layer, head), failed(error). */
  constructor(models, model, view, on) {
    this.models = models;
    this.view = view;
    this.on = on;
    this.inspection = null;
    this.maps = null;
    this.picture = null;
    this.asked = 0;
    this.root = element("article", { class: "pane card" });
    this.#build();
    this.setModel(model);
  }

  #build() {
    this.select = element("select", { "aria-label": "Model", onchange: () => this.#switch(Number(this.select.value)) });
    for (const model of this.models) this.select.append(element("option", { value: model.id }, model.name));
    this.slider = element("input", { type: "range", min: 0, step: 1, "aria-label": "Training time" });
    this.slider.addEventListener("input", () => this.#travel());
    this.moment = element("output", { class: "moment" });
    this.player = element("button", { type: "button", class: "play-button", onclick: () => this.#play() }, "Play");
    this.time = element("div", { class: "time" }, this.player, this.slider, this.moment);
    this.predictions = element("ol", { class: "predictions", "aria-label": "Predictions" });
    this.title = element("h3", {});
    this.facts = element("p", { class: "facts" });
    this.large = element("div", { class: "heads" });
    this.small = element("div", { class: "matrix", role: "grid", "aria-label": "All layers and heads" });
    this.small.addEventListener("keydown", (event) => this.#key(event));
    this.root.append(
      element("header", {}, this.select, this.moment, this.predictions), this.time,
      element("div", { class: "focus" }, this.title, this.facts, this.large), this.small,
    );
  }

  get model() { return this.models[this.modelId]; }
  get layer() { return Math.min(this.view.layer, this.inspection.layers.length - 1); }
  get head() { return Math.min(this.view.head, this.inspection.layers[this.layer].heads.length - 1); }

  setModel(id) {
    this.modelId = id;
    this.select.value = String(id);
    const { snapshots, selected } = this.model;
    this.slider.max = String(snapshots.length - 1);
    const start = snapshots.findIndex((snapshot) => snapshot.step === selected);
    this.slider.value = String(Math.max(start, 0));
    this.time.hidden = snapshots.length < 2;
    this.#name();
  }

  get snapshot() { return this.model.snapshots[Number(this.slider.value)]; }

  #name() {
    this.moment.textContent = this.snapshot.label;
    this.slider.setAttribute("aria-valuetext", this.snapshot.label);
    this.root.setAttribute("aria-label", `${this.model.name}, ${this.snapshot.label}`);
  }

  async #switch(id) {
    this.setModel(id);
    await this.load(this.picture);
    this.on.changed();
  }

  async #travel() {
    this.#name();
    await this.load(this.picture);
    this.on.changed();
  }

  /** Step through the snapshots once, from the first if the last one is shown. */
  async #play() {
    if (this.playing) {
      this.playing = false;
      return;
    }
    this.playing = true;
    this.player.textContent = "Pause";
    const last = Number(this.slider.max);
    if (Number(this.slider.value) === last) this.slider.value = "-1";
    while (this.playing && Number(this.slider.value) < last) {
      this.slider.value = String(Number(this.slider.value) + 1);
      const pause = new Promise((resolve) => setTimeout(resolve, PLAY_PAUSE));
      await this.#travel();
      await pause;
    }
    this.playing = false;
    this.player.textContent = "Play";
  }

  /** Have a picture looked at and its maps fetched; the newest request wins. */
  async load(picture) {
    if (picture === null) return;
    this.picture = picture;
    const turn = ++this.asked;
    this.root.setAttribute("aria-busy", "true");
    try {
      const inspection = await api.inspect(this.modelId, this.snapshot.step, picture);
      const maps = await api.maps(inspection, this.view.query);
      if (turn !== this.asked) return;
      const rebuilt = !this.inspection || shapeOf(this.inspection) !== shapeOf(inspection);
      this.inspection = inspection;
      this.maps = maps;
      if (rebuilt) this.#layOut();
      this.#describe();
    } catch (error) {
      if (turn === this.asked) this.on.failed(error);
    } finally {
      if (turn === this.asked) this.root.removeAttribute("aria-busy");
    }
  }

  async fetchMaps(query) {
    if (this.inspection) this.maps = await api.maps(this.inspection, query);
  }

  /** The weights that are shown for a head: those of the chosen part, where the layer has it. */
  weights(layer, head) {
    const { part } = this.view;
    const whole = part === "content" && !this.inspection.layers[layer].parts.includes("content") ? "mixed" : part;
    const all = this.maps[whole][layer];
    const { keys } = this.inspection.layers[layer];
    return all && all.subarray(head * keys, (head + 1) * keys);
  }

  #layOut() {
    const { layers } = this.inspection;
    const widest = Math.max(...layers.map((layer) => layer.heads.length));
    this.root.style.setProperty("--heads", widest);
    this.root.classList.toggle("many", widest > 5);
    this.root.classList.toggle("windows", layers.some((layer) => layer.kernel_size !== null));
    this.cells = layers.map((layer, number) => layer.heads.map((_, head) => this.#cell(number, head)));
    this.labels = layers.map((layer, number) => this.#label(layer, number));
    this.rows = layers.map((layer, number) => element("div", { class: "line", role: "row" }, this.labels[number].root, ...this.cells[number].map((cell) => cell.root)));
    this.small.replaceChildren(...this.rows);
    this.largeLayer = null;
    this.marked = null;
  }

  #label(layer, number) {
    const bar = element("i", {});
    const far = element("small", {});
    const root = element("button", { type: "button", class: "label", role: "rowheader", tabindex: -1, onclick: () => this.on.chosen(number, this.view.head) },
      element("b", {}, String(number + 1)), element("span", {}, SHORT[layer.kind]), far, element("em", { "aria-hidden": "true" }, bar));
    return { root, bar, far };
  }

  #cell(layer, head) {
    const canvas = element("canvas", { width: 1, height: 1 });
    const chip = element("span", { class: "chip", hidden: true });
    const root = element("button", { type: "button", class: "cell", role: "gridcell", tabindex: -1, onclick: () => this.on.chosen(layer, head) }, canvas, element("span", { class: "box" }), chip);
    root.dataset.layer = layer;
    root.dataset.head = head;
    return { root, canvas, chip };
  }

  #key(event) {
    const cell = event.target.closest(".cell");
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (!cell || !moves[event.key]) return;
    event.preventDefault();
    const layer = Math.min(Math.max(Number(cell.dataset.layer) + moves[event.key][0], 0), this.cells.length - 1);
    const head = Math.min(Math.max(Number(cell.dataset.head) + moves[event.key][1], 0), this.cells[layer].length - 1);
    this.#rove(layer, head);
    this.cells[layer][head].root.focus();
  }

  #rove(layer, head) {
    for (const row of this.cells) for (const cell of row) cell.root.tabIndex = -1;
    this.cells[layer][head].root.tabIndex = 0;
  }

  /** What does not change with the query: predictions, gates, distances, names. */
  #describe() {
    const { layers, predictions } = this.inspection;
    this.root.style.setProperty("--picture", `url("${api.pictureAddress(this.inspection)}")`);
    this.predictions.replaceChildren(...predictions.slice(0, 3).map(({ label, probability }) => {
      const said = element("span", {}, label);
      if (probability === undefined) return element("li", {}, said);
      const share = element("i", {});
      share.style.setProperty("width", `${100 * probability}%`);
      return element("li", {}, said, element("b", {}, percent(probability)), share);
    }));
    const furthest = Math.max(...layers.map((layer) => Math.hypot(...layer.key_grid) / 2));
    layers.forEach((layer, number) => {
      const far = mean(layer.heads.map((head) => head.nonlocality));
      this.labels[number].far.textContent = far.toFixed(1);
      this.labels[number].bar.style.setProperty("width", `${Math.min(100, (100 * far) / furthest)}%`);
      this.labels[number].root.setAttribute("aria-label", `Layer ${number + 1}, ${KINDS[layer.kind]}, looks ${far.toFixed(1)} patches far`);
      this.labels[number].root.title = `${layer.name}: looks ${far.toFixed(2)} patches far on average`;
      layer.heads.forEach((head, index) => {
        const { root, chip } = this.cells[number][index];
        const gate = head.gate_value;
        chip.hidden = gate === null;
        if (gate !== null) {
          chip.textContent = gate.toFixed(2);
          chip.style.setProperty("background", gateColor(gate));
          chip.style.setProperty("color", gateInk(gate));
        }
        root.setAttribute("aria-label", `Layer ${number + 1}, head ${index + 1}${gate === null ? "" : `, gate ${gate.toFixed(2)}`}, looks ${head.nonlocality.toFixed(1)} patches far`);
      });
    });
  }

  draw() {
    if (!this.inspection || !this.maps) return;
    const { query, scale } = this.view;
    const { layers } = this.inspection;
    layers.forEach((layer, number) => {
      placeBox(this.rows[number], layer, query);
      layer.heads.forEach((_, head) => paintMap(this.cells[number][head].canvas, layer, this.weights(number, head), query, scale));
    });
    this.#mark();
    this.#drawLarge();
  }

  /** Show which head is chosen and which have nothing to show; not again for every query, as it makes the browser lay out. */
  #mark() {
    const state = JSON.stringify([this.layer, this.head, this.view.part]);
    if (this.marked === state) return;
    this.marked = state;
    this.cells.forEach((row, number) => {
      this.rows[number].classList.toggle("current", number === this.layer);
      row.forEach((cell, head) => {
        cell.root.classList.toggle("empty", !this.weights(number, head));
        cell.root.setAttribute("aria-selected", String(number === this.layer && head === this.head));
      });
    });
    this.#rove(this.layer, this.head);
  }

  #drawLarge() {
    const number = this.layer;
    const layer = this.inspection.layers[number];
    const far = mean(layer.heads.map((head) => head.nonlocality));
    const entropy = mean(layer.heads.map((head) => head.entropy));
    this.title.replaceChildren(`Layer ${number + 1} `, element("small", {}, layer.kind === "local" ? `${layer.name}, ${layer.kernel_size}×${layer.kernel_size} windows` : KINDS[layer.kind]));
    this.facts.textContent = `looks ${far.toFixed(2)} patches far, entropy ${entropy.toFixed(2)} nats`;
    if (this.largeLayer !== number) {
      this.largeHeads = layer.heads.map((_, head) => this.#largeHead(number, head));
      this.large.replaceChildren(...this.largeHeads.map((shown) => shown.root));
      this.largeLayer = number;
    }
    placeBox(this.large, layer, this.view.query);
    layer.heads.forEach((facts, head) => this.#drawLargeHead(layer, facts, head));
  }

  #largeHead(number, head) {
    const canvas = element("canvas", { width: 1, height: 1 });
    const [rows, cols] = this.inspection.layers[number].key_grid;
    const marks = svg("svg", { viewBox: `0 0 ${cols} ${rows}`, "aria-hidden": "true" });
    const gate = element("div", { class: "gate" }, element("i", {}), element("span", {}));
    const text = element("p", {});
    const root = element("figure", { onclick: () => this.on.chosen(number, head) }, element("div", { class: "map" }, canvas, element("span", { class: "box" }), marks), element("figcaption", {}, element("b", {}, `head ${head + 1}`), gate, text));
    return { root, canvas, marks, gate, text };
  }

  #drawLargeHead(layer, facts, head) {
    const shown = this.largeHeads[head];
    const weights = this.weights(this.layer, head);
    paintMap(shown.canvas, layer, weights, this.view.query, this.view.scale);
    shown.root.classList.toggle("current", head === this.head);
    shown.root.classList.toggle("empty", !weights);
    const exact = facts.center !== null;
    const center = exact ? facts.center : facts.measured_center;
    const span = exact ? facts.span : facts.measured_span;
    drawMarks(shown.marks, queryCell(layer, this.view.query), center, span, exact);
    shown.gate.hidden = facts.gate_value === null;
    if (facts.gate_value !== null) {
      shown.gate.firstChild.style.setProperty("width", `${100 * facts.gate_value}%`);
      shown.gate.lastChild.textContent = `σ(λ) ${facts.gate_value.toFixed(2)}`;
    }
    const peak = weights && peakOf(layer, weights, this.view.query);
    const lines = [
      `Δ ${exact ? "" : "≈ "}${signed(center[0])}, ${signed(center[1])}`,
      `span ${exact ? "" : "≈ "}${span.toFixed(2)}${facts.degenerate ? ", no peak" : ""}`,
      peak ? `peak ${percent(peak.weight)}` : "no positional map",
    ];
    shown.text.replaceChildren(...lines.flatMap((line, index) => (index ? [element("br"), line] : [line])));
    shown.root.title = `${exact ? "centre and span as learned" : "centre and span measured on the map"}; nonlocality ${facts.nonlocality.toFixed(2)}, entropy ${facts.entropy.toFixed(2)} nats, ${percent(facts.convolution_share)} of a convolution`;
  }

  /** One sentence for screen readers. */
  sentence() {
    const layer = this.inspection.layers[this.layer];
    const heads = layer.heads.map((_, head) => {
      const weights = this.weights(this.layer, head);
      if (!weights) return `head ${head + 1} has no positional map`;
      const peak = peakOf(layer, weights, this.view.query);
      return `head ${head + 1} looks most at row ${peak.row + 1}, column ${peak.col + 1}, ${percent(peak.weight)}`;
    });
    return `${this.model.name}, layer ${this.layer + 1}: ${heads.join("; ")}.`;
  }
}

function placeBox(target, layer, query) {
  const cell = queryCell(layer, query);
  const [rows, cols] = layer.key_grid;
  target.style.setProperty("--top", `${(100 * cell.row) / rows}%`);
  target.style.setProperty("--left", `${(100 * cell.col) / cols}%`);
  target.style.setProperty("--tall", `${100 / rows}%`);
  target.style.setProperty("--wide", `${100 / cols}%`);
}

/** A cross at the centre of attention and a ring of its span, dashed when measured rather than learned. */
function drawMarks(marks, cell, center, span, exact) {
  const [col, row] = [cell.col + 0.5 + center[1], cell.row + 0.5 + center[0]];
  if (!marks.firstChild) marks.append(svg("path"), svg("path"));
  const radius = Math.max(span, 0.05);
  const ring = `M${col - radius} ${row}a${radius} ${radius} 0 1 1 0 0.001`;
  const line = `${ring}M${col - 0.3} ${row}h0.6M${col} ${row - 0.3}v0.6`;
  marks.firstChild.setAttribute("class", exact ? "mark under" : "mark under measured");
  marks.lastChild.setAttribute("class", exact ? "mark" : "mark measured");
  for (const path of marks.children) path.setAttribute("d", line);
}

const shapeOf = (inspection) => JSON.stringify(inspection.layers.map((layer) => [layer.kind, layer.key_grid, layer.query_grid, layer.heads.length]));
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const signed = (value) => `${value < -0.05 ? "−" : "+"}${Math.abs(value).toFixed(1)}`;
export const percent = (share) => (share >= 0.1 ? `${Math.round(100 * share)} %` : `${(100 * share).toFixed(1)} %`);
