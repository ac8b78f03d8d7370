// What is shown, as a picture or as numbers.

import { gateColor, gateInk, ramp, rampIndex } from "./colors.js";
import { paintMap, queryCell } from "./draw.js";

function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

export function saveText(name, content) {
  download(new Blob([JSON.stringify(content, null, 1)], { type: "application/json" }), name);
}

/** The playground's field, kernels and pictures, with its numbers. */
export function savePlayground(playground) {
  saveText("nearsight-playground.json", playground.describe());
}

export function savePlaygroundPng(playground) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [1520, 900];
  const context = canvas.getContext("2d");
  context.fillStyle = "#fff";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.textBaseline = "middle";
  context.imageSmoothingEnabled = false;
  const shown = playground.describe();
  const [row, col] = shown.center;
  context.drawImage(playground.canvas, 40, 90, 660, 660);
  context.strokeStyle = "#e5383b";
  context.lineWidth = 3;
  context.strokeRect(40 + 7 * 44, 90 + 7 * 44, 44, 44);
  context.strokeStyle = "#fff";
  context.beginPath();
  context.arc(40 + (7.5 + col) * 44, 90 + (7.5 + row) * 44, 12, 0, 2 * Math.PI);
  context.stroke();
  write(context, `α ${shown.locality_strength.toFixed(2)}   σ(λ) ${shown.gate_value.toFixed(2)}   Δ ${row.toFixed(2)}, ${col.toFixed(2)}`, 40, 50, 24, "#23272e");
  write(context, shown.verdict, 40, 810, 22, "#23272e");
  [shown.head_kernel, shown.convolution_kernel].forEach((kernel, index) => drawKernel(context, kernel, 760 + index * 370, 90, 340));
  playground.images.forEach(({ name, canvas: image }, index) => {
    context.drawImage(image, 760 + index * 245, 500, 220, 220);
    write(context, name, 760 + index * 245, 740, 17, "#5b6470");
  });
  canvas.toBlob((blob) => download(blob, "nearsight-playground.png"), "image/png");
}

function drawKernel(context, kernel, left, top, side) {
  const step = side / kernel.length;
  const peak = Math.max(...kernel.flat(), 1e-9);
  kernel.forEach((line, row) => line.forEach((value, col) => {
    const index = rampIndex(Math.sqrt(value / peak));
    context.fillStyle = `rgb(${ramp[index]}, ${ramp[index + 1]}, ${ramp[index + 2]})`;
    context.fillRect(left + col * step, top + row * step, step - 4, step - 4);
    write(context, value.toFixed(2), left + col * step + step / 2 - 18, top + row * step + step / 2, 18, index > 450 ? "#10142b" : "#f2f4f8");
  }));
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
  saveText("nearsight.json", { part: view.part, query: view.query, panes: shown });
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
