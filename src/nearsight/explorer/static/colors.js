// One ramp for weights, from least (dark) to most (bright), and the white-to-red of gates.

const STOPS = [[15, 19, 43], [36, 57, 107], [47, 111, 134], [84, 163, 138], [164, 208, 130], [253, 246, 196]];
const STEPS = 256;

export const ramp = new Uint8ClampedArray(3 * STEPS);
for (let step = 0; step < STEPS; step++) {
  const place = (step / (STEPS - 1)) * (STOPS.length - 1);
  const low = Math.min(Math.floor(place), STOPS.length - 2);
  for (let channel = 0; channel < 3; channel++) {
    ramp[3 * step + channel] = STOPS[low][channel] + (place - low) * (STOPS[low + 1][channel] - STOPS[low][channel]);
  }
}

/** How weights become shares of the ramp: each map by itself, from its least weight to its greatest.
 *  The logarithm reaches down to a thousandth of the greatest, as in the paper's figures. */
export function scaleOf(weights, scale) {
  let low = Infinity;
  let peak = 0;
  for (const weight of weights) {
    if (weight > peak) peak = weight;
    if (weight < low) low = weight;
  }
  if (scale === "linear") {
    const range = peak - low || 1;
    return (weight) => (weight - low) / range;
  }
  const floor = Math.log(Math.max(low, peak * 1e-3, 1e-12));
  const range = Math.log(Math.max(peak, 1e-12)) - floor || 1;
  return (weight) => (Math.log(Math.max(weight, 1e-12)) - floor) / range;
}

export function rampIndex(share) {
  return 3 * Math.round(Math.min(Math.max(share, 0), 1) * (STEPS - 1));
}

/** White for content, red for position. */
export function gateColor(value) {
  const mix = (from, to) => Math.round(from + value * (to - from));
  return `rgb(${mix(255, 200)}, ${mix(255, 38)}, ${mix(255, 52)})`;
}

export function gateInk(value) {
  return value > 0.55 ? "#fff" : "#23272e";
}

export function drawRamp(canvas) {
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, 1);
  for (let step = 0; step < canvas.width; step++) {
    const index = rampIndex(step / (canvas.width - 1));
    image.data.set([ramp[index], ramp[index + 1], ramp[index + 2], 255], 4 * step);
  }
  context.putImageData(image, 0, 0);
}
