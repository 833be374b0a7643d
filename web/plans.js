// The ways of a plan that are worth drawing, each once: those that the program numbers, then the others, the fastest first.

export function plansOf(plan) {
  const found = new Map();
  const add = (way, role) => {
    // One way can be the fastest, on the frontier and a lever alone.
    const key = JSON.stringify([way.batch, way.set]);
    found.set(key, {...way, ...found.get(key), ...role});
  };
  plan.ways.forEach((way, index) => add(way, {number: index + 1}));
  if (plan.closest) add(plan.closest, {closest: true});
  add(plan.as_captured, {captured: true});
  for (const way of plan.alone.filter((one) => !isTooSlow(plan, one))) add(way, {alone: true});
  for (const way of plan.frontier) add(way, {frontier: true});
  const all = [...found.values()].map((way) => ({...way, name: nameOf(way)}));
  const rank = (way) => way.number ?? (way.closest ? 0 : Infinity);
  return all.sort((a, b) => {
    if (rank(a) !== rank(b)) return rank(a) - rank(b);
    return (b.surely_fits - a.surely_fits) || (perSample(a) - perSample(b));
  });
}

/** A lever that alone is less than half as fast as the best would press all others together. */
export function isTooSlow(plan, way) {
  return plan.ways.length > 0 && perSample(way) > 2 * perSample(plan.ways[0]);
}

export function perSample(way) {
  return way.step_us / way.samples;
}

/** What it is called where it is spoken of. */
function nameOf(way) {
  if (way.number === 1) return "the first way";
  if (way.number) return `way ${way.number}`;
  if (way.closest) return "what comes closest";
  return way.captured ? "the job as captured" : way.alone ? "a single lever" : "a way on the frontier";
}
