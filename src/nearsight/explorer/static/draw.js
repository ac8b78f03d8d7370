// Drawing maps: one canvas pixel for each patch, enlarged by the style sheet.

import { ramp, rampIndex, scaleOf } from "./colors.js";

/** The rectangle of keys a layer sees from a query: the whole grid, or a window. */
export function keyArea(layer, query) {
  const [rows, cols] = layer.key_grid;
  if (layer.kernel_size === null) return { top: 0, left: 0, rows, cols };
  const at = queryCell(layer, query);
  const before = Math.floor((layer.kernel_size - 1) / 2);
  return { top: at.row - before, left: at.col - before, rows: layer.kernel_size, cols: layer.kernel_size };
}

/** The query's cell on a layer's grid of keys. */
export function queryCell(layer, query) {
  const [rows, cols] = layer.query_grid;
  return {
    row: Math.min(Math.floor(query.row * rows), rows - 1) * layer.stride,
    col: Math.min(Math.floor(query.col * cols), cols - 1) * layer.stride,
  };
}

/** Paint a head's weights on a canvas with one pixel for each key. Outside a window the canvas stays clear.
 *  As a veil, to be laid over a picture, small weights are see-through as well. */
export function paintMap(canvas, layer, weights, query, scale, veil = false) {
  const [rows, cols] = layer.key_grid;
  if (canvas.width !== cols) canvas.width = cols;
  if (canvas.height !== rows) canvas.height = rows;
  const context = canvas.getContext("2d", { willReadFrequently: true });  // kept in memory: it is written, never composed
  const image = context.createImageData(cols, rows);
  if (weights) {
    const area = keyArea(layer, query);
    const share = scaleOf(inside(layer, weights, area), scale);
    for (let row = 0; row < area.rows; row++) {
      for (let col = 0; col < area.cols; col++) {
        const [toRow, toCol] = [area.top + row, area.left + col];
        if (toRow < 0 || toCol < 0 || toRow >= rows || toCol >= cols) continue;
        const part = share(weights[row * area.cols + col]);
        const index = rampIndex(part);
        const place = 4 * (toRow * cols + toCol);
        image.data[place] = ramp[index];
        image.data[place + 1] = ramp[index + 1];
        image.data[place + 2] = ramp[index + 2];
        image.data[place + 3] = veil ? 55 + 165 * part : 255;
      }
    }
  }
  context.putImageData(image, 0, 0);
}

/** Weights of keys in the picture: a window at the edge has some outside, with no weight and no say in the scale. */
function inside(layer, weights, area) {
  const [rows, cols] = layer.key_grid;
  if (area.top >= 0 && area.left >= 0 && area.top + area.rows <= rows && area.left + area.cols <= cols) return weights;
  return weights.filter((weight, index) => {
    const row = area.top + Math.floor(index / area.cols);
    const col = area.left + (index % area.cols);
    return row >= 0 && col >= 0 && row < rows && col < cols;
  });
}

/** The key with the greatest weight: {row, col, weight}. */
export function peakOf(layer, weights, query) {
  const area = keyArea(layer, query);
  let best = 0;
  for (let index = 1; index < weights.length; index++) if (weights[index] > weights[best]) best = index;
  return { row: area.top + Math.floor(best / area.cols), col: area.left + (best % area.cols), weight: weights[best] };
}

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}
