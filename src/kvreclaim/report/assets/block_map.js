"use strict";

// The block map: blocks as rows, token slots as cells. Masks and moves come from the data; nothing is decided here.
const SVG = "http://www.w3.org/2000/svg";
const CELL = 10;
const GAP = 1.4;
const LABEL = 20;
const COLUMN_GAP = 18;

function element(name, attributes, parent) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (parent) parent.append(made);
  return made;
}

/** The keep mask of a frame: hex of packed bits, the first token in the highest bit. */
function decodeKeep(hex, tokens) {
  return Array.from({ length: tokens }, (_, token) => {
    const nibble = parseInt(hex[token >> 2], 16);
    return ((nibble >> (3 - (token & 3))) & 1) === 1;
  });
}

/** Every slot of the map as live, held, freed or unfilled, before the moves or after them. */
function slotStates(blockMap, frame, afterMoves) {
  const { tokens, block_size: size } = blockMap;
  const slots = Math.ceil(tokens / size) * size;
  const live = decodeKeep(frame.keep, tokens);
  while (live.length < slots) live.push(false);
  if (afterMoves) {
    for (const [source, destination] of frame.compaction.moves) {
      live[source] = false;
      live[destination] = true;
    }
  }
  return live.map((alive, slot) => {
    if (alive) return "live";
    const first = slot - (slot % size);
    if (!live.slice(first, first + size).includes(true)) return "freed";
    return slot < tokens ? "held" : "unfilled";
  });
}

const count = (number, word) => `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;

/** What the blocks still held keep of the dead: of many heads pairs too, as few tokens are dead in them all. */
function heldInVain(frame) {
  const dead = frame.dead_tokens_held;
  if (frame.stranded === undefined || frame.stranded === null) {
    return `${count(dead, "dead token")} still held beside survivors.`;
  }
  const pairs = `${Math.round(100 * frame.stranded)} % of the KV pairs still held are dead`;
  return `${pairs}; ${count(dead, "token")} held ${dead === 1 ? "is" : "are"} dead in every head.`;
}

/** What the map shows, in words and numbers. */
function describe(blockMap, frame, step) {
  const moves = frame.compaction.moves.length;
  const more = frame.compaction.freed_blocks;
  const percent = Math.round(100 * frame.compression_ratio);
  const blocks = count(frame.blocks, "block");
  const view = blockMap.view === undefined ? "" : `, ${blockMap.view}`;
  const head = `${blockMap.title}${view}, ${percent} % evicted: `;
  if (step === "moves") {
    return moves === 0
      ? `${head}no move would free another block.`
      : `${head}${count(moves, "move")} would free ${count(more, "more block")}.`;
  }
  if (step === "compacted") {
    return `${head}after ${count(moves, "move")}, ${frame.free_blocks + more} of ${blocks} are free.`;
  }
  return `${head}${frame.free_blocks} of ${blocks} freed without a copy; ${heldInVain(frame)}`;
}

class BlockMapView {
  constructor(root, maps) {
    this.root = root;
    this.maps = maps;
    this.policy = 0;
    this.view = 0;
    this.views = Math.max(1, root.querySelectorAll("[data-view]").length);
    this.step = "evicted";
    this.canvas = root.querySelector(".block-map-canvas");
    this.words = root.querySelector(".block-map-words");
    this.slider = root.querySelector("input[type=range]");
    this.output = root.querySelector("output");
    this.frame = Math.floor((maps[0].frames.length - 1) / 2);
    this.columns = 0;
    this.press("[data-policy]", (button) => { this.policy = Number(button.dataset.policy); });
    this.press("[data-view]", (button) => { this.view = Number(button.dataset.view); });
    this.press("[data-step]", (button) => { this.step = button.dataset.step; });
    this.slider.addEventListener("input", () => { this.frame = Number(this.slider.value); this.draw(); });
    new ResizeObserver(() => { if (this.fittingColumns() !== this.columns) this.draw(); }).observe(this.canvas);
    this.draw();
  }

  /** Make buttons a group of which one is pressed. */
  press(selector, choose) {
    const buttons = [...this.root.querySelectorAll(selector)];
    for (const button of buttons) {
      button.addEventListener("click", () => {
        choose(button);
        for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
        this.draw();
      });
    }
  }

  get blockMap() { return this.maps[this.policy * this.views + this.view]; }
  get columnWidth() { return LABEL + this.blockMap.block_size * CELL + COLUMN_GAP; }

  fittingColumns() {
    const blocks = Math.ceil(this.blockMap.tokens / this.blockMap.block_size);
    const fit = Math.floor((this.canvas.clientWidth + COLUMN_GAP) / this.columnWidth);
    return Math.max(1, Math.min(fit, Math.ceil(blocks / 8)));
  }

  draw() {
    const { blockMap } = this;
    this.frame = Math.min(this.frame, blockMap.frames.length - 1);
    const frame = blockMap.frames[this.frame];
    this.root.dataset.step = this.step;
    this.slider.max = String(blockMap.frames.length - 1);
    this.slider.value = String(this.frame);
    this.slider.closest("label").hidden = blockMap.frames.length === 1;
    const percent = `${Math.round(100 * frame.compression_ratio)} %`;
    this.output.value = percent;
    this.slider.setAttribute("aria-valuetext", `${percent} evicted`);
    this.words.textContent = describe(blockMap, frame, this.step);
    this.columns = this.fittingColumns();
    this.canvas.replaceChildren(this.svg(frame));
  }

  /** Upper left corner of a slot. */
  corner(slot) {
    const size = this.blockMap.block_size;
    const block = Math.floor(slot / size);
    const rows = Math.ceil(Math.ceil(this.blockMap.tokens / size) / this.columns);
    const column = Math.floor(block / rows);
    return [column * this.columnWidth + LABEL + (slot % size) * CELL, (block % rows) * CELL * 1.25];
  }

  svg(frame) {
    const size = this.blockMap.block_size;
    const blocks = Math.ceil(this.blockMap.tokens / size);
    const rows = Math.ceil(blocks / this.columns);
    const width = this.columns * this.columnWidth - COLUMN_GAP;
    const svg = element("svg", {
      viewBox: `0 0 ${width} ${rows * CELL * 1.25}`,
      role: "img",
      "aria-label": describe(this.blockMap, frame, this.step),
    });
    svg.style.maxWidth = `${width * 1.7}px`;
    this.hatch(svg);
    const states = slotStates(this.blockMap, frame, this.step === "compacted");
    const moves = this.step === "moves" ? frame.compaction.moves : [];
    const sources = new Set(moves.map(([source]) => source));
    const destinations = new Set(moves.map(([, destination]) => destination));
    for (let block = 0; block < blocks; block += 1) {
      const [x, y] = this.corner(block * size);
      element("text", { x: x - 4, y: y + CELL * 0.8, "text-anchor": "end" }, svg).textContent = String(block);
    }
    states.forEach((state, slot) => {
      const shown = sources.has(slot) ? "source" : destinations.has(slot) ? "destination" : state;
      this.cell(svg, slot, shown, this.step === "evicted" ? frame.share : undefined);
    });
    for (const move of moves) this.arrow(svg, ...move);
    return svg;
  }

  cell(svg, slot, state, share) {
    const [x, y] = this.corner(slot);
    const side = CELL - GAP;
    const inset = state === "freed" || state === "source" ? 0.6 : 0;
    const rect = element("rect", {
      x: x + inset, y: y + inset, width: side - 2 * inset, height: side - 2 * inset, rx: 1.2, class: state,
    }, svg);
    if (state === "held") rect.setAttribute("fill", `url(#${this.root.id}-hatch)`);
    if (state === "live" && share !== undefined) {
      rect.setAttribute("fill-opacity", String(0.16 + 0.84 * (parseInt(share[slot], 16) / 15)));
    }
  }

  arrow(svg, source, destination) {
    const middle = (CELL - GAP) / 2;
    const [x1, y1] = this.corner(source).map((edge) => edge + middle);
    const [x2, y2] = this.corner(destination).map((edge) => edge + middle);
    const bend = Math.min(30, 6 + Math.hypot(x2 - x1, y2 - y1) / 8);
    element("path", { class: "move", d: `M${x1} ${y1}Q${(x1 + x2) / 2} ${(y1 + y2) / 2 - bend} ${x2} ${y2}` }, svg);
  }

  hatch(svg) {
    const pattern = element("pattern", {
      id: `${this.root.id}-hatch`, width: 3, height: 3, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)",
    }, svg);
    element("rect", { width: 3, height: 3, class: "hatch-ground" }, pattern);
    element("path", { d: "M0 0V3", class: "hatch", "stroke-width": 1.5 }, pattern);
  }
}
