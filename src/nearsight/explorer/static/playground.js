// One positional head under the hand: −α‖δ − Δ‖² through a softmax, gated against content, beside the convolution it stands for.

import { ramp, rampIndex } from "./colors.js";
import { element, svg } from "./draw.js";

const SIDE = 15; // patches of the grid, the query in its middle
const MIDDLE = (SIDE - 1) / 2;
const PIXELS = 28; // side of the picture that is carried through the head
const PRESETS = {
  "as ConViT starts": { strength: 1, gate: 1, row: 0, col: -1 },
  "a convolution": { strength: 12, gate: 6, row: 0, col: -1 },
  "between two patches": { strength: 12, gate: 6, row: 0, col: -0.5 },
  "wide": { strength: 0.06, gate: 6, row: 0, col: 0 },
  "content alone": { strength: 1, gate: -6, row: 0, col: -1 },
};

/** exp(−α(δ − Δ)²) over offsets, normalised: the softmax of one axis. P is the product of two. */
export function axisWeights(strength, center, offsets) {
  const logits = offsets.map((offset) => -strength * (offset - center) ** 2);
  const top = Math.max(...logits);
  const raised = logits.map((logit) => Math.exp(logit - top));
  const total = raised.reduce((sum, value) => sum + value, 0);
  return raised.map((value) => value / total);
}

export const sigmoid = (gate) => 1 / (1 + Math.exp(-gate));
const range = (from, to) => Array.from({ length: to - from + 1 }, (_, index) => from + index);

export class Playground {
  constructor(root) {
    this.root = root;
    this.state = { ...PRESETS["as ConViT starts"], kernel: 3 };
    this.source = null;
    this.#build();
    this.#draw();
  }

  #build() {
    this.canvas = element("canvas", { width: SIDE, height: SIDE });
    this.handle = svg("circle", { r: 0.42, class: "handle" });
    this.ring = svg("circle", { class: "mark" });
    this.shade = svg("circle", { class: "mark under" });
    this.marks = svg("svg", { viewBox: `0 0 ${SIDE} ${SIDE}`, "aria-hidden": "true" }, this.shade, this.ring, this.handle);
    this.field = element("div", { class: "field" }, this.canvas, element("span", { class: "box" }), this.marks);
    this.field.addEventListener("pointerdown", (event) => { this.field.setPointerCapture(event.pointerId); this.#drag(event); });
    this.field.addEventListener("pointermove", (event) => event.buttons && this.#drag(event));
    this.inputs = {
      strength: this.#slider("strength", "locality strength α", -2, 1.7, 0.01, (value) => 10 ** value, (value) => Math.log10(value)),
      gate: this.#slider("gate", "gate λ", -6, 6, 0.05),
      row: this.#slider("row", "centre Δ, rows", -6, 6, 0.05),
      col: this.#slider("col", "centre Δ, columns", -6, 6, 0.05),
    };
    const presets = element("div", { class: "presets", role: "group", "aria-label": "Starting points" });
    for (const [name, preset] of Object.entries(PRESETS)) {
      presets.append(element("button", { type: "button", onclick: () => this.#set(preset) }, name));
    }
    this.take = element("button", { type: "button", hidden: true, onclick: () => this.#takeHead() }, "");
    presets.append(this.take);
    this.kernel = element("table", { class: "kernel", "aria-label": "The head as a convolution kernel" });
    this.ideal = element("table", { class: "kernel", "aria-label": "The convolution it stands for" });
    this.size = element("select", { "aria-label": "Kernel size" }, ...[3, 5, 7].map((size) => element("option", { value: size }, `${size}×${size}`)));
    this.size.addEventListener("change", () => this.#set({ kernel: Number(this.size.value) }));
    this.verdict = element("p", { class: "verdict", "aria-live": "polite" });
    this.images = ["the picture, coarse", "through this head", "through the convolution"].map((name) => ({ name, canvas: element("canvas", { width: PIXELS, height: PIXELS }) }));
    this.root.append(
      element("section", { class: "card", "aria-label": "The head" }, element("h2", {}, "One head"),
        element("p", { class: "hint" }, "Drag on the field to move where the head looks from the red patch."),
        this.field, presets),
      element("section", { class: "card knobs", "aria-label": "Its numbers" }, element("h2", {}, "Its four numbers"),
        ...Object.values(this.inputs).map((input) => input.root),
        element("p", { class: "formula" }, "A = (1 − σ(λ)) · even + σ(λ) · softmax(−α‖δ − Δ‖²)")),
      element("section", { class: "card", "aria-label": "Its convolution" },
        element("h2", {}, "The convolution it stands for ", this.size),
        element("div", { class: "kernels" }, captioned("this head's kernel", this.kernel), captioned("its convolution", this.ideal)),
        this.verdict,
        element("div", { class: "through" }, ...this.images.map(({ name, canvas }) => captioned(name, canvas)))),
    );
  }

  #slider(name, label, min, max, step, toState = (value) => value, fromState = (value) => value) {
    const id = `play-${name}`;
    const input = element("input", { type: "range", id, min, max, step });
    const output = element("output", { for: id });
    input.addEventListener("input", () => this.#set({ [name]: toState(Number(input.value)) }));
    return { root: element("div", { class: "slider" }, element("label", { for: id }, label), input, output), input, output, fromState };
  }

  #set(change) {
    Object.assign(this.state, change);
    this.#draw();
  }

  #drag(event) {
    const area = this.canvas.getBoundingClientRect();
    const place = (position, size) => Math.min(Math.max((position / size) * SIDE - 0.5 - MIDDLE, -6), 6);
    this.#set({ row: place(event.clientY - area.top, area.height), col: place(event.clientX - area.left, area.width) });
  }

  /** Called when the tab is opened: the chosen head can be taken over, and the picture is carried through. */
  open(pane, picture) {
    const head = pane?.inspection?.layers[pane.layer].heads[pane.head];
    this.source = head && head.center !== null && !head.degenerate ? head : null;
    this.take.hidden = !this.source;
    if (this.source) this.take.textContent = `layer ${pane.layer + 1}, head ${pane.head + 1} of ${pane.model.name}`;
    if (picture.bitmap) {
      const small = this.images[0].canvas.getContext("2d", { willReadFrequently: true });
      small.imageSmoothingQuality = "high";
      small.drawImage(picture.bitmap, 0, 0, PIXELS, PIXELS);
      this.pixels = small.getImageData(0, 0, PIXELS, PIXELS);
    }
    this.#draw();
  }

  #takeHead() {
    const { strength, center, gate_value: gate } = this.source;
    const share = gate === null ? 1 - 1e-6 : Math.min(Math.max(gate, 1e-6), 1 - 1e-6);
    this.#set({ strength, row: center[0], col: center[1], gate: Math.log(share / (1 - share)) });
  }

  /** What is shown, as numbers. */
  describe() {
    const numbers = (table) => [...table.rows].map((row) => [...row.cells].map((cell) => Number(cell.dataset.value)));
    const { strength, gate, row, col, kernel } = this.state;
    return {
      locality_strength: strength, gate, gate_value: sigmoid(gate), center: [row, col], kernel_size: kernel,
      head_kernel: numbers(this.kernel), convolution_kernel: numbers(this.ideal), verdict: this.verdict.textContent,
    };
  }

  #draw() {
    const { strength, gate, row, col, kernel } = this.state;
    const share = sigmoid(gate);
    for (const [name, { input, output, fromState }] of Object.entries(this.inputs)) {
      input.value = String(fromState(this.state[name]));
      output.textContent = name === "gate" ? `${gate.toFixed(2).replace("-", "−")}, σ(λ) = ${share.toFixed(2)}` : this.state[name].toFixed(2).replace("-", "−");
      input.setAttribute("aria-valuetext", output.textContent);
    }
    const offsets = range(-MIDDLE, MIDDLE);
    const byRow = axisWeights(strength, row, offsets);
    const byCol = axisWeights(strength, col, offsets);
    const even = 1 / SIDE ** 2;
    this.#paintField((r, c) => (1 - share) * even + share * byRow[r] * byCol[c]);
    this.handle.setAttribute("cx", MIDDLE + 0.5 + col);
    this.handle.setAttribute("cy", MIDDLE + 0.5 + row);
    for (const ring of [this.shade, this.ring]) {
      ring.setAttribute("cx", MIDDLE + 0.5 + col);
      ring.setAttribute("cy", MIDDLE + 0.5 + row);
      ring.setAttribute("r", 1 / Math.sqrt(2 * strength));
    }
    this.#drawKernels(kernel, share, byRow, byCol, even);
    this.#carry(share, strength, row, col);
  }

  #paintField(weight) {
    const context = this.canvas.getContext("2d");
    const image = context.createImageData(SIDE, SIDE);
    const all = range(0, SIDE - 1).flatMap((r) => range(0, SIDE - 1).map((c) => weight(r, c)));
    const peak = Math.max(...all);
    all.forEach((value, place) => {
      const index = rampIndex(Math.sqrt(value / peak)); // the root shows a kernel's skirts
      image.data.set([ramp[index], ramp[index + 1], ramp[index + 2], 255], 4 * place);
    });
    context.putImageData(image, 0, 0);
  }

  /** The kernel: how much each offset of a k×k window gets. Its convolution: all of it on the offset nearest to Δ. */
  #drawKernels(size, share, byRow, byCol, even) {
    const before = (size - 1) / 2;
    const offsets = range(-before, before);
    const weight = (r, c) => (1 - share) * even + share * byRow[MIDDLE + r] * byCol[MIDDLE + c];
    const nearest = (value) => Math.min(Math.max(Math.sign(value) * Math.round(Math.abs(value)), -before), before) || 0;
    const [row, col] = [nearest(this.state.row), nearest(this.state.col)];
    fillTable(this.kernel, offsets, weight);
    fillTable(this.ideal, offsets, (r, c) => Number(r === row && c === col));
    const inside = offsets.reduce((sum, r) => sum + offsets.reduce((line, c) => line + weight(r, c), 0), 0);
    const on = weight(row, col);
    this.verdict.dataset.on = String(on);
    this.verdict.dataset.inside = String(inside);
    const place = row === 0 && col === 0 ? "the patch itself" : `the patch ${describe(row, "below", "above")}${row && col ? " and " : ""}${describe(col, "to the right", "to the left")}`;
    const words = on > 0.95 ? "It is that convolution: " : on > 0.5 ? "It leans towards that convolution: " : "It is far from that convolution: ";
    this.verdict.textContent = `${words}${(100 * on).toFixed(1)} % of its attention falls on ${place}, ${(100 * (1 - inside)).toFixed(1)} % outside the ${size}×${size} window.`;
  }

  /** What the head brings to every patch of the coarse picture, and what the convolution would (edges repeat themselves). */
  #carry(share, strength, row, col) {
    if (!this.pixels) return;
    const source = this.pixels.data;
    const places = range(0, PIXELS - 1);
    const weights = (center) => places.map((query) => axisWeights(strength, center, places.map((key) => key - query)));
    const [byRow, byCol] = [weights(row), weights(col)];
    const average = [0, 1, 2].map((channel) => places.reduce((sum, r) => sum + places.reduce((line, c) => line + source[4 * (r * PIXELS + c) + channel], 0), 0) / PIXELS ** 2);
    const [head, ideal] = [new ImageData(PIXELS, PIXELS), new ImageData(PIXELS, PIXELS)];
    const rows = new Float32Array(PIXELS * PIXELS * 3);
    for (const r of places) for (const c of places) for (let channel = 0; channel < 3; channel++) {
      let sum = 0;
      for (const key of places) sum += byRow[r][key] * source[4 * (key * PIXELS + c) + channel];
      rows[3 * (r * PIXELS + c) + channel] = sum;
    }
    const clamp = (value) => Math.min(Math.max(value, 0), PIXELS - 1);
    const nearest = (value) => Math.sign(value) * Math.round(Math.abs(value));
    for (const r of places) for (const c of places) {
      const place = 4 * (r * PIXELS + c);
      const from = 4 * (clamp(r + nearest(row)) * PIXELS + clamp(c + nearest(col)));
      for (let channel = 0; channel < 3; channel++) {
        let sum = 0;
        for (const key of places) sum += byCol[c][key] * rows[3 * (r * PIXELS + key) + channel];
        head.data[place + channel] = (1 - share) * average[channel] + share * sum;
        ideal.data[place + channel] = source[from + channel];
      }
      head.data[place + 3] = 255;
      ideal.data[place + 3] = 255;
    }
    this.images[1].canvas.getContext("2d").putImageData(head, 0, 0);
    this.images[2].canvas.getContext("2d").putImageData(ideal, 0, 0);
  }
}

function describe(offset, forward, backward) {
  return offset ? `${Math.abs(offset)} ${offset > 0 ? forward : backward}` : "";
}

function captioned(name, content) {
  return element("figure", {}, content, element("figcaption", {}, name));
}

function fillTable(table, offsets, weight) {
  const peak = Math.max(...offsets.flatMap((r) => offsets.map((c) => weight(r, c))), 1e-9);
  table.replaceChildren(...offsets.map((r) => element("tr", {}, ...offsets.map((c) => {
    const value = weight(r, c);
    const index = rampIndex(Math.sqrt(value / peak));
    const cell = element("td", { class: r === 0 && c === 0 ? "query" : "" }, value === 1 ? "1" : value < 0.0005 ? "0" : value.toFixed(2).replace(/^0/, ""));
    cell.style.setProperty("background", `rgb(${ramp[index]}, ${ramp[index + 1]}, ${ramp[index + 2]})`);
    cell.style.setProperty("color", index > 3 * 150 ? "#10142b" : "#f2f4f8");
    cell.dataset.value = String(value);
    return cell;
  }))));
}
