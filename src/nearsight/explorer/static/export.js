// What is shown, as a picture or as numbers.

import { gateColor, gateInk } from "./colors.js";
import { paintMap, queryCell } from "./draw.js";

function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

export function saveJson(view, panes) {
  const shown = panes.filter((pane) => pane.inspection).map((pane) => ({
    model: pane.model.name,
    snapshot: pane.snapshot,
    picture: pane.inspection.picture,
    predictions: pane.inspection.predictions,
    layers: pane.inspection.layers.map((layer, number) => ({
      name: layer.name,
      kind: layer.kind,
      key_grid: layer.key_grid,
      kernel_size: layer.kernel_size,
      query: queryCell(layer, view.query),
      heads: layer.heads.map((facts, head) => ({ ...facts, map: [...(pane.weights(number, head) ?? [])].map((weight) => Number(weight.toPrecision(4))) })),
    })),
  }));
  const text = JSON.stringify({ part: view.part, query: view.query, panes: shown }, null, 1);
  download(new Blob([text], { type: "application/json" }), "nearsight.json");
}

const CELL = 64;
const GAP = 6;
const LABEL = 70;
const PICTURE = 280;

/** The picture, then every pane's maps with their gates, on white, at twice the size of a screen. */
export function savePng(view, panes, picture) {
  const shown = panes.filter((pane) => pane.inspection);
  const widths = shown.map((pane) => LABEL + Math.max(...pane.inspection.layers.map((layer) => layer.heads.length)) * (CELL + GAP) + 24);
  const height = 60 + Math.max(PICTURE + 40, ...shown.map((pane) => pane.inspection.layers.length * (CELL + GAP) + 20));
  const canvas = document.createElement("canvas");
  canvas.width = 2 * (PICTURE + 60 + widths.reduce((sum, width) => sum + width, 0));
  canvas.height = 2 * height;
  const context = canvas.getContext("2d");
  context.scale(2, 2);
  context.fillStyle = "#fff";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.textBaseline = "middle";
  context.imageSmoothingEnabled = true;
  const tall = (PICTURE * picture.canvas.height) / picture.canvas.width;
  context.drawImage(picture.canvas, 24, 50, PICTURE, tall);
  outline(context, picture.layer, view.query, 24, 50, PICTURE, tall);
  write(context, `${view.part} maps, ${view.scale === "log" ? "logarithmic" : "linear"} colour`, 24, 26, 13, "#23272e");
  context.imageSmoothingEnabled = false;
  let left = PICTURE + 48;
  shown.forEach((pane, index) => {
    drawPane(context, view, pane, left);
    left += widths[index];
  });
  canvas.toBlob((blob) => download(blob, "nearsight.png"), "image/png");
}

function drawPane(context, view, pane, left) {
  write(context, `${pane.model.name}, ${pane.snapshot.label}`, left, 26, 13, "#23272e");
  const small = document.createElement("canvas");
  pane.inspection.layers.forEach((layer, number) => {
    const top = 50 + number * (CELL + GAP);
    write(context, `layer ${number + 1}`, left, top + CELL / 2, 12, "#5b6470");
    layer.heads.forEach((facts, head) => {
      const from = left + LABEL + head * (CELL + GAP);
      const weights = pane.weights(number, head);
      if (!weights) return;
      paintMap(small, layer, weights, view.query, view.scale);
      context.drawImage(small, from, top, CELL, CELL);
      outline(context, layer, view.query, from, top, CELL, CELL);
      if (facts.gate_value !== null) {
        context.fillStyle = gateColor(facts.gate_value);
        context.fillRect(from + CELL - 24, top, 24, 13);
        write(context, facts.gate_value.toFixed(2), from + CELL - 21, top + 7, 9, gateInk(facts.gate_value));
      }
    });
  });
}

function outline(context, layer, query, left, top, width, height) {
  const cell = queryCell(layer, query);
  const [rows, cols] = layer.key_grid;
  context.strokeStyle = "#e5383b";
  context.lineWidth = 1.5;
  context.strokeRect(left + (cell.col * width) / cols, top + (cell.row * height) / rows, width / cols, height / rows);
}

function write(context, text, left, middle, size, color) {
  context.fillStyle = color;
  context.font = `${size}px system-ui, sans-serif`;
  context.fillText(text, left, middle);
}
