// Numbers and words for people. Sizes are written as the program writes them.

const kUnits = ["KiB", "MiB", "GiB"];

/** "512 bytes", "48.00 MiB", "7.76 GiB" */
export function bytes(n) {
  const sign = n < 0 ? "-" : "";
  let size = Math.abs(n);
  if (size < 1024) return `${n} bytes`;
  let unit = -1;
  while (size >= 1024 && unit + 1 < kUnits.length) {
    size /= 1024;
    ++unit;
  }
  return `${sign}${hundredths(size)} ${kUnits[unit]}`;
}

/** Halves go to the even digit, as the program rounds; toFixed rounds them up. */
function hundredths(size) {
  const below = Math.floor(size * 100);
  const rest = size * 100 - below;
  return ((rest > 0.5 || (rest === 0.5 && below % 2 === 1) ? below + 1 : below) / 100).toFixed(2);
}

/** "+48.00 MiB", "-7.76 GiB", "same" */
export function change(n) {
  return n === 0 ? "same" : `${n > 0 ? "+" : ""}${bytes(n)}`;
}

export function percent(part, whole) {
  return whole > 0 ? `${(100 * part / whole).toFixed(1)} %` : "";
}

/** Microseconds, as long as they are from the start: "1.204 s". */
export function duration(us) {
  if (us < 1000) return `${Math.round(us)} µs`;
  if (us < 1e6) return `${(us / 1e3).toFixed(1)} ms`;
  if (us < 120e6) return `${(us / 1e6).toFixed(3)} s`;
  return `${(us / 60e6).toFixed(1)} min`;
}

export function count(n) {
  return n.toLocaleString("en-US");
}

/** "activations", "optimizer state" */
export function words(name) {
  return name.replaceAll("_", " ");
}

export function baseName(path) {
  return path.slice(path.lastIndexOf("/") + 1);
}

/** Marks for an axis up to `most` bytes, round in the units of memory. */
export function roundSizes(most) {
  let step = 2 ** Math.floor(Math.log2(Math.max(2, most / 4)));
  while (most / step > 6) step *= 2;
  return Array.from({length: Math.ceil(most / step)}, (_, i) => i * step);
}
