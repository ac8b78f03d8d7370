// The server's interface. Errors become Error objects with the server's own sentence.

async function ask(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Error("The explorer does not answer. Is `nearsight explore` still running?");
  }
  if (!response.ok) {
    let message = `The server answered ${response.status}.`;
    try {
      message = (await response.json()).error || message;
    } catch { /* the answer was not JSON; the number has to do */ }
    throw new Error(message);
  }
  return response;
}

export const models = async () => (await ask("/api/models")).json();
export const samples = async () => (await ask("/api/samples")).json();
export const thumbnail = (id) => `/api/pictures/${encodeURIComponent(id)}/thumbnail`;

export const MAX_BYTES = 10 * 2 ** 20;

export async function upload(file) {
  if (file.size > MAX_BYTES) throw new Error(`${file.name} is larger than ${MAX_BYTES / 2 ** 20} MB.`);
  const path = `/api/pictures?name=${encodeURIComponent(file.name.slice(-200))}`;
  const headers = { "Content-Type": "application/octet-stream" };
  return (await ask(path, { method: "POST", body: file, headers })).json();
}

export async function inspect(model, step, picture) {
  const body = JSON.stringify({ model, step, picture });
  const answer = await ask("/api/inspections", { method: "POST", body, headers: { "Content-Type": "application/json" } });
  return withOffsets(await answer.json());
}

export const pictureAddress = (inspection) => `/api/inspections/${encodeURIComponent(inspection.id)}/picture`;

export async function picture(inspection) {
  const answer = await ask(pictureAddress(inspection));
  return createImageBitmap(await answer.blob());
}

/** All maps of one query: {part: [layer: Float32Array of heads × keys, or undefined]}. */
export async function maps(inspection, query) {
  const path = `/api/inspections/${encodeURIComponent(inspection.id)}/maps?row=${query.row}&col=${query.col}`;
  const halves = new Uint16Array(await (await ask(path)).arrayBuffer());
  const result = {};
  for (const part of inspection.parts) {
    result[part] = inspection.layers.map((layer) => {
      const place = layer.offsets[part];
      return place === undefined ? undefined : toFloats(halves.subarray(place, place + layer.heads.length * layer.keys));
    });
  }
  return result;
}

/** Where each layer's maps begin in the server's answer: part by part, layer by layer. */
function withOffsets(inspection) {
  let place = 0;
  for (const layer of inspection.layers) {
    layer.keys = layer.kernel_size === null ? layer.key_grid[0] * layer.key_grid[1] : layer.kernel_size ** 2;
    layer.offsets = {};
  }
  for (const part of inspection.parts) {
    for (const layer of inspection.layers) {
      if (layer.parts.includes(part)) {
        layer.offsets[part] = place;
        place += layer.heads.length * layer.keys;
      }
    }
  }
  return inspection;
}

const FLOATS = new Float32Array(2 ** 16);
for (let bits = 0; bits < FLOATS.length; bits++) {
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  const size = exponent === 0 ? fraction * 2 ** -24 : (1 + fraction / 1024) * 2 ** (exponent - 15);
  FLOATS[bits] = exponent === 31 ? NaN : bits >> 15 ? -size : size;
}

function toFloats(halves) {
  const floats = new Float32Array(halves.length);
  for (let index = 0; index < halves.length; index++) floats[index] = FLOATS[halves[index]];
  return floats;
}
