// One device's run, unpacked from the page (docs/formats/page.md), and the questions that can be
// asked of any instant of it. The answers follow the program's own rules (src/diagnose/attribution/account.cc)
// and equal what `plimsoll explain --at EVENT --json` says; tests/web holds them against each other.

/** Later than every event. */
export const kNotYet = 2 ** 31 - 1;

const kMiB = 1024 * 1024;
/** Requests up to this come from small segments; PyTorch's own figure. */
const kSmallRequest = kMiB;
const kSmallSegment = 2 * kMiB;
const kLargeSegment = 20 * kMiB;

/** Numbers in groups of seven bits, the lowest first. */
class Reader {
  constructor(data) {
    this.data = data;
    this.at = 0;
  }

  number() {
    let value = 0;
    let scale = 1;
    for (;;) {
      const byte = this.data[this.at++];
      value += (byte & 127) * scale;
      if (byte < 128) return value;
      scale *= 128;
    }
  }

  text() {
    const size = this.number();
    this.at += size;
    return new TextDecoder().decode(this.data.subarray(this.at - size, this.at));
  }

  plain(column) {
    for (let i = 0; i < column.length; ++i) column[i] = this.number();
    return column;
  }

  /** Differences from the row before, of either sign. */
  differences(column) {
    let value = 0;
    for (let i = 0; i < column.length; ++i) {
      const coded = this.number();
      value += coded % 2 ? -(coded + 1) / 2 : coded / 2;
      column[i] = value;
    }
    return column;
  }

  /** 0 for never, else one more than how much later than `from`. */
  later(column, from) {
    for (let i = 0; i < column.length; ++i) {
      const after = this.number();
      column[i] = after === 0 ? kNotYet : from[i] + after - 1;
    }
    return column;
  }
}

async function inflated(base64) {
  const packed = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

export class History {
  static async unpack(base64) {
    return new History(await inflated(base64));
  }

  constructor(data) {
    const reader = new Reader(data);
    const header = JSON.parse(reader.text());
    this.names = header.names;
    this.categories = header.categories;
    this.marks = header.marks.map(([kind, first, last, step]) => ({kind, first, last, step}));
    this.stretches = header.stretches.map(([stage, first, last, depth, name, part]) => ({stage, first, last, depth, name, part}));
    this.stretchesLeftOut = header.stretches_left_out;
    this.hasSpans = header.has_spans;
    this.base = BigInt(header.base);
    this.events = header.events;
    this.times = reader.differences(new Float64Array(header.events));
    this.readBlocks(reader, header.blocks);
    this.readSpans(reader, header.spans);
    this.nodes = {};
    for (const name of ["parent", "function", "file", "line"]) {
      this.nodes[name] = reader.differences(new Int32Array(header.nodes));
    }
    this.statedFrom = reader.differences(new Int32Array(header.reserved));
    this.stated = reader.plain(new Float64Array(header.reserved));
    this.hasTimes = this.events > 1 && this.times[this.events - 1] > this.times[0];
    this.findPeak();
  }

  readBlocks(reader, count) {
    this.blocks = count;
    this.made = reader.differences(new Int32Array(count));
    this.released = reader.later(new Int32Array(count), this.made);
    this.freed = reader.later(new Int32Array(count), this.released);
    this.offset = reader.plain(new Float64Array(count));
    this.requested = reader.plain(new Float64Array(count));
    this.size = reader.plain(new Float64Array(count));
    for (let i = 0; i < count; ++i) this.size[i] += this.requested[i];
    this.category = reader.plain(new Uint8Array(count));
    this.node = reader.differences(new Int32Array(count));
    this.place = reader.differences(new Int32Array(count));
    this.module = reader.differences(new Int32Array(count));
  }

  readSpans(reader, count) {
    const from = reader.differences(new Int32Array(count));
    const to = reader.later(new Int32Array(count), from);
    const columns = ["offset", "size", "expandable", "stream", "pool"].map(() => reader.plain(new Float64Array(count)));
    this.spans = Array.from(from, (_, i) => ({
      from: from[i],
      to: to[i],
      offset: columns[0][i],
      size: columns[1][i],
      expandable: columns[2][i] === 1,
      stream: columns[3][i],
      pool: columns[4][i],
    }));
  }

  /** What each event changes: blocks in the order in which they are released. */
  get releases() {
    this.releaseOrder ??= Uint32Array.from({length: this.blocks}, (_, i) => i)
        .filter((i) => this.released[i] !== kNotYet)
        .sort((a, b) => this.released[a] - this.released[b]);
    return this.releaseOrder;
  }

  findPeak() {
    this.peak = {event: Math.min(0, this.events - 1), allocated: 0};
    let allocated = 0;
    let next = 0;
    let gone = 0;
    for (let event = -1; event < this.events; ++event) {
      for (; next < this.blocks && this.made[next] <= event; ++next) allocated += this.size[next];
      for (; gone < this.releases.length && this.released[this.releases[gone]] <= event; ++gone) {
        allocated -= this.size[this.releases[gone]];
      }
      if (allocated > this.peak.allocated) this.peak = {event, allocated};
    }
  }

  /** How many blocks were made up to an event; later ones need not be looked at. */
  madeBy(event) {
    let low = 0;
    let high = this.blocks;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.made[middle] <= event) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** The blocks that the program holds after an event, in the order in which they were made. */
  heldAt(event) {
    const held = [];
    const end = this.madeBy(event);
    for (let i = 0; i < end; ++i) if (this.released[i] > event) held.push(i);
    return held;
  }

  /** Those too that another stream still uses, by address. */
  inUseAt(event) {
    const uses = [];
    const end = this.madeBy(event);
    for (let i = 0; i < end; ++i) if (this.freed[i] > event) uses.push(i);
    return uses.sort((a, b) => this.offset[a] - this.offset[b]);
  }

  spansAt(event) {
    return this.spans.filter((s) => s.from <= event && s.to > event).sort((a, b) => a.offset - b.offset);
  }

  /**
   * The segments at an event, each with its pieces in order of address: {offset, size, block}, where
   * a free piece has block -1 and says how much of it could be given back.
   */
  segmentsAt(event) {
    const uses = this.inUseAt(event);
    let next = 0;
    return this.spansAt(event).map((span) => {
      const end = span.offset + span.size;
      while (next < uses.length && this.offset[uses[next]] < span.offset) ++next;
      const first = next;
      while (next < uses.length && this.offset[uses[next]] < end) ++next;
      return {span, pieces: this.piecesOf(span, uses.slice(first, next))};
    });
  }

  piecesOf(span, uses) {
    const pieces = [];
    const end = span.offset + span.size;
    const largest = uses.reduce((most, i) => Math.max(most, this.size[i]), 0);
    const page = largest > kSmallRequest ? kLargeSegment : kSmallSegment;
    const addFree = (from, to) => {
      if (to <= from) return;
      const whole = uses.length === 0 ? to - from : span.expandable ? wholePages(span.offset, from, to, page) : 0;
      pieces.push({offset: from, size: to - from, block: -1, whole});
    };
    let at = span.offset;
    for (const i of uses) {
      addFree(at, Math.min(this.offset[i], end));
      pieces.push({offset: this.offset[i], size: this.size[i], block: i, whole: 0});
      at = Math.max(at, this.offset[i] + this.size[i]);
    }
    addFree(at, end);
    return pieces;
  }

  /** Where every byte is after an event; the lines add up to `reserved`. */
  accountAt(event) {
    const account = {allocated: 0, pending: 0, fragmented: 0, cached: 0};
    const byCategory = new Float64Array(this.categories.length);
    let rounding = 0;
    const end = this.madeBy(event);
    for (let i = 0; i < end; ++i) {
      if (this.released[i] <= event) {
        if (this.freed[i] > event) account.pending += this.size[i];
        continue;
      }
      account.allocated += this.size[i];
      rounding += this.size[i] - this.requested[i];
      byCategory[this.category[i]] += this.requested[i];
    }
    if (this.hasSpans) this.addFree(event, account);
    else account.cached = this.statedAt(event, account) - account.allocated - account.pending;
    account.reserved = account.allocated + account.pending + account.fragmented + account.cached;
    const lines = this.categories.map((what, c) => ({what, bytes: byCategory[c]}))
        .filter((line) => line.bytes > 0 || line.what === "unattributed");
    const rest = {rounding, pending: account.pending, fragmented: account.fragmented, cached: account.cached};
    for (const [what, size] of Object.entries(rest)) if (size > 0) lines.push({what, bytes: size});
    return {...account, lines};
  }

  addFree(event, account) {
    for (const {pieces} of this.segmentsAt(event)) {
      for (const piece of pieces) {
        if (piece.block >= 0) continue;
        account.cached += piece.whole;
        account.fragmented += piece.size - piece.whole;
      }
    }
  }

  /** Reserved memory as the record states it; never less than what is in use. */
  statedAt(event, account) {
    const least = account.allocated + account.pending;
    let reserved = least;
    for (let i = 0; i < this.stated.length && this.statedFrom[i] <= event; ++i) {
      reserved = Math.max(this.stated[i], least);
    }
    return reserved;
  }

  /** Who holds what the program holds, by line and module, the largest first: {place, module, category, bytes, count}. */
  holdersAt(event) {
    const lines = new Map();
    // The largest first: of several modules, the first is the one that took most.
    for (const row of this.heldBy(event, (i) => this.names[this.module[i]])) {
      const key = `${row.place}\n${row.category}`;
      const line = lines.get(key);
      if (!line) {
        lines.set(key, {...row, modules: 1});
      } else {
        line.bytes += row.bytes;
        line.count += row.count;
        ++line.modules;
      }
    }
    return [...lines.values()].sort((a, b) => b.bytes - a.bytes);
  }

  /** As holdersAt, by line alone, as `plimsoll diff` compares them. */
  linesAt(event) {
    return this.heldBy(event, () => "");
  }

  heldBy(event, moduleOf) {
    const groups = new Map();
    for (const i of this.heldAt(event)) {
      const module = moduleOf(i);
      const key = `${this.place[i]},${this.category[i]},${module}`;
      let group = groups.get(key);
      if (!group) {
        group = {place: this.names[this.place[i]], module, category: this.categories[this.category[i]],
          order: this.category[i], bytes: 0, count: 0};
        groups.set(key, group);
      }
      group.bytes += this.size[i];
      ++group.count;
    }
    const byName = (a, b) => a === b ? 0 : a < b ? -1 : 1;
    return [...groups.values()].sort((a, b) =>
      b.bytes - a.bytes || byName(a.place, b.place) || a.order - b.order || byName(a.module, b.module));
  }

  /** The stack of a node, innermost first: {function, file, line}. */
  stackOf(node) {
    const frames = [];
    for (; node > 0; node = this.nodes.parent[node]) {
      frames.push({
        function: this.names[this.nodes.function[node]],
        file: this.names[this.nodes.file[node]],
        line: this.nodes.line[node],
      });
    }
    return frames;
  }

  address(offset) {
    return `0x${(this.base + BigInt(offset)).toString(16)}`;
  }

  /** The innermost stretch of the job's life that an event lies in, or nothing. */
  stretchAt(event) {
    return this.stretches.reduce((found, s) => s.first <= event && s.last >= event && s.depth >= (found?.depth ?? 0) ? s : found, null);
  }

  /** The step and phase that an event lies in: "backward of step 3". */
  phaseAt(event) {
    const inside = this.marks.filter((m) => m.first <= event && m.last >= event);
    const phase = inside.find((m) => m.kind !== "step");
    const step = inside.find((m) => m.kind === "step");
    if (phase) return phaseText(phase);
    return step ? `step ${step.step}` : "";
  }
}

/** "backward of step 3"; of a predicted run, those after its steps have no number. */
export function phaseText({kind, step}) {
  return step > 0 ? `${kind} of step ${step}` : `${kind} after the first steps`;
}

/** The pages of a free piece that the allocator could give back: those wholly inside it. */
function wholePages(base, begin, end, page) {
  const first = Math.ceil((begin - base) / page);
  const last = Math.floor((end - base) / page);
  return last > first ? (last - first) * page : 0;
}
