"use strict";

// The page: one theme, groups of buttons, and figures that draw the chart of the pressed buttons.
const pageData = JSON.parse(document.getElementById("page-data").textContent);
const root = document.documentElement;

/** Rows as objects, from a table of columns and rows. */
function rowsOf(name) {
  const { columns, rows } = pageData.data[name];
  return rows.map((row) => Object.fromEntries(columns.map((column, place) => [column, row[place]])));
}

/** A chart ready to embed: its data put back, its colours those of the theme. */
function specificationOf(chart, theme) {
  const copy = structuredClone(chart);
  copy.datasets = Object.fromEntries(chart.datasets.map((name) => [name, rowsOf(name)]));
  for (const param of copy.params) if (param.name === "ink") param.value = theme.ink;
  return copy;
}

class FigureView {
  constructor(node, figure) {
    this.node = node;
    this.figure = figure;
    this.values = Object.fromEntries(figure.controls.map((control) => [control.id, control.first]));
    this.hidden = new Set();
    this.drawing = Promise.resolve();
    for (const button of node.querySelectorAll("[data-series]")) {
      button.addEventListener("click", () => this.toggle(button));
    }
    node.querySelector("details").addEventListener("toggle", () => this.tabulate());
  }

  get chart() {
    return this.figure.charts[this.figure.controls.map((control) => this.values[control.id]).join("/")];
  }

  set(control, value) {
    if (!(control in this.values) || this.values[control] === value) return;
    this.values[control] = value;
    this.draw();
  }

  toggle(button) {
    const { series } = button.dataset;
    const shown = this.hidden.delete(series);
    if (!shown) this.hidden.add(series);
    button.setAttribute("aria-pressed", String(shown));
    this.queue(() => this.view.signal("hidden", [...this.hidden]).runAsync());
  }

  draw() {
    return this.queue(() => this.embed());
  }

  /** Do something to the chart after what is being done: of presses in quick succession the last one stays. */
  queue(task) {
    this.node.setAttribute("aria-busy", "true");
    const turn = this.drawing.then(task).catch((error) => {
      this.node.querySelector(".chart").textContent = "This chart could not be drawn.";
      console.error(error);
    }).finally(() => {
      if (this.drawing === turn) this.node.removeAttribute("aria-busy");
    });
    this.drawing = turn;
    return turn;
  }

  async embed() {
    const theme = pageData.themes[root.dataset.theme];
    const target = this.node.querySelector(".chart");
    const specification = specificationOf(this.chart, theme);
    for (const param of specification.params) if (param.name === "hidden") param.value = [...this.hidden];
    this.view?.finalize();
    const result = await vegaEmbed(target, specification, {
      mode: "vega-lite",
      renderer: "svg",
      actions: false,
      defaultStyle: false,
      config: theme.config,
      tooltip: { theme: "page", disableDefaultStyle: true },
    });
    this.view = result.view;
    target.style.minHeight = "";
    this.tabulate();
  }

  /** Fill the table of values, if it is open; else empty it, so that it never opens on values of another chart. */
  tabulate() {
    const details = this.node.querySelector("details");
    const place = details.querySelector(".scroll");
    if (!details.open) {
      place.replaceChildren();
      return;
    }
    const { columns } = this.chart.usermeta;
    const table = document.createElement("table");
    const head = table.createTHead().insertRow();
    for (const [title] of columns) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.textContent = title;
      head.append(cell);
    }
    const body = table.createTBody();
    for (const row of rowsOf(this.chart.datasets[0])) {
      const line = body.insertRow();
      for (const [, field] of columns) line.insertCell().textContent = row[field] ?? "";
    }
    place.replaceChildren(table);
  }
}

function showTheme(theme) {
  root.dataset.theme = theme;
  document.getElementById("theme-toggle").setAttribute("aria-pressed", String(theme === "dark"));
}

function watchTheme(views) {
  const change = (theme) => {
    showTheme(theme);
    for (const view of views) view.draw();
  };
  showTheme(root.dataset.theme);
  document.getElementById("theme-toggle").addEventListener("click", () => {
    const theme = root.dataset.theme === "dark" ? "light" : "dark";
    try { sessionStorage.setItem("kvreclaim-theme", theme); } catch { /* then it lasts until a reload */ }
    change(theme);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => {
    change(event.matches ? "dark" : "light");
  });
}

function watchControls(views) {
  for (const group of document.querySelectorAll("[data-control]")) {
    group.addEventListener("click", (event) => {
      const { value } = event.target.dataset;
      if (value === undefined) return;
      const { section, control } = group.dataset;
      for (const button of group.querySelectorAll("button")) {
        button.setAttribute("aria-pressed", String(button.dataset.value === value));
      }
      const scope = group.closest("figure");
      for (const view of views) {
        const own = scope === null ? view.node.dataset.section === section : view.node === scope;
        if (own) view.set(control, value);
      }
    });
  }
}

/** Mark the section under the line of links, and keep its link in sight. */
function watchSections() {
  const line = document.querySelector("nav");
  const list = line.querySelector("ol");
  const links = [...list.querySelectorAll("a")];
  const sections = links.map((link) => document.getElementById(link.hash.slice(1)));
  const there = new Set();
  const observer = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) there[isIntersecting ? "add" : "delete"](target);
    const current = links[sections.findLastIndex((section) => there.has(section))];
    for (const link of links) link.setAttribute("aria-current", String(link === current));
    if (current) list.scrollLeft += current.getBoundingClientRect().left - list.getBoundingClientRect().left - 24;
  }, { rootMargin: `-${line.offsetHeight}px 0px -80% 0px` });
  for (const section of sections) observer.observe(section);
}

/** Fold long tables where the screen is narrow and each of their rows a card; on wide ones they stay open. */
function foldTables() {
  const narrow = matchMedia("(max-width: 40rem)");
  const fold = () => {
    for (const table of document.querySelectorAll("details.narrow")) table.open = !narrow.matches;
  };
  narrow.addEventListener("change", fold);
  fold();
}

async function start() {
  const views = Object.entries(pageData.figures).map(
    ([id, figure]) => new FigureView(document.getElementById(id), figure),
  );
  watchTheme(views);
  foldTables();
  watchSections();
  watchControls(views);
  for (const [id, maps] of Object.entries(pageData.blockMaps)) new BlockMapView(document.getElementById(id), maps);
  for (const view of views) await view.draw();
  root.dataset.ready = "true";
}

start();
