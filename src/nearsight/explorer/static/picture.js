// The picture: the query patch is chosen on it, by pointer or by keys.

import { paintMap, queryCell } from "./draw.js";

export class PictureView {
  /** `onQuery(query, pinned)`: hovering proposes a query, a click or a key pins it. */
  constructor(stage, onQuery) {
    this.stage = stage;
    this.canvas = stage.querySelector("canvas");
    this.box = stage.querySelector(".box");
    this.onQuery = onQuery;
    this.bitmap = null;
    this.layer = null;
    this.query = null;
    this.heat = document.createElement("canvas");
    stage.addEventListener("pointermove", (event) => event.pointerType !== "touch" && this.#point(event, false));
    stage.addEventListener("pointerleave", () => this.query && this.onQuery(this.query, true));
    stage.addEventListener("click", (event) => this.#point(event, true));
    stage.addEventListener("keydown", (event) => this.#key(event));
  }

  /** `layer` gives the grid that queries snap to. */
  show(bitmap, layer) {
    this.bitmap = bitmap;
    this.layer = layer;
    this.canvas.width = bitmap.width;
    this.canvas.height = bitmap.height;
    this.stage.style.setProperty("aspect-ratio", `${bitmap.width} / ${bitmap.height}`);
    this.stage.classList.toggle("coarse", bitmap.width < 160);
    const [rows, cols] = layer.query_grid;
    this.canvas.getContext("2d").drawImage(bitmap, 0, 0);
    if (!this.query) this.query = { row: (Math.floor(rows / 2) + 0.5) / rows, col: (Math.floor(cols / 2) + 0.5) / cols };
    this.#snap(this.query);
  }

  #snap(query) {
    const [rows, cols] = this.layer.query_grid;
    const clamp = (share, count) => (Math.min(Math.max(Math.floor(share * count), 0), count - 1) + 0.5) / count;
    this.query = { row: clamp(query.row, rows), col: clamp(query.col, cols) };
  }

  #point(event, pinned) {
    if (!this.layer) return;
    const area = this.canvas.getBoundingClientRect();
    const [rows, cols] = this.layer.query_grid;
    const row = Math.min(Math.max(Math.floor(((event.clientY - area.top) / area.height) * rows), 0), rows - 1);
    const col = Math.min(Math.max(Math.floor(((event.clientX - area.left) / area.width) * cols), 0), cols - 1);
    const query = { row: (row + 0.5) / rows, col: (col + 0.5) / cols };
    if (pinned) this.query = query;
    this.onQuery(query, pinned);
  }

  #key(event) {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [0, -1e3], End: [0, 1e3] };
    const move = moves[event.key];
    if (!move || !this.layer) return;
    event.preventDefault();
    const [rows, cols] = this.layer.query_grid;
    this.#snap({ row: this.query.row + move[0] / rows, col: this.query.col + move[1] / cols });
    this.onQuery(this.query, true);
  }

  /** Draw the picture, one head's map over it where there is one, a frame around everything that a detector found, and
   *  the box around the query. */
  draw(query, overlay, found) {
    if (!this.bitmap) return;
    const context = this.canvas.getContext("2d");
    const { width, height } = this.canvas;
    context.drawImage(this.bitmap, 0, 0);
    if (overlay && overlay.weights) {
      paintMap(this.heat, overlay.layer, overlay.weights, query, overlay.scale, true);
      context.imageSmoothingEnabled = false;
      context.drawImage(this.heat, 0, 0, width, height);
    }
    context.strokeStyle = "#2dd4bf";
    context.lineWidth = Math.max(width / 250, 1);
    for (const { box } of found.filter((one) => one.box)) {
      const [left, top, right, bottom] = box;
      context.strokeRect(left * width, top * height, (right - left) * width, (bottom - top) * height);
    }
    const cell = queryCell(this.layer, query);
    const [rows, cols] = this.layer.key_grid;
    const style = this.box.style;
    style.setProperty("top", `${(100 * cell.row) / rows}%`);
    style.setProperty("left", `${(100 * cell.col) / cols}%`);
    style.setProperty("height", `${100 / rows}%`);
    style.setProperty("width", `${100 / cols}%`);
    this.box.hidden = false;
  }
}
