"use strict";
// Lays out the results that the page holds. What figures mean was decided when they were written; nothing is computed here but
// where things lie. Tables come first and need no library: the charts are drawn once it is there, and only where a reader looks.

const results = JSON.parse(document.getElementById("results").textContent);

function el(kind, attributes, ...children) {
  const [tag, ...classes] = kind.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  for (const [name, value] of Object.entries(attributes ?? {})) if (value != null) element.setAttribute(name, value);
  element.append(...children.flat(Infinity).filter((child) => child != null));
  return element;
}
const how = (...words) => el("p.how", null, ...words);
const fold = (title, ...content) => el("details", null, el("summary", null, title), ...content);

// Figures as people read them.
const NONE = "–";
function number(value) {
  if (value == null) return NONE;
  const digits = Math.abs(value) >= 99.95 ? { maximumFractionDigits: 0 } : { maximumSignificantDigits: 3 };
  return value.toLocaleString("en", digits);
}
function short(value) {
  const [factor, letter] = value >= 999.5e6 ? [1e9, " G"] : value >= 999.5e3 ? [1e6, " M"] : value >= 9995 ? [1e3, " k"] : [1, ""];
  return number(value / factor) + letter;
}
const time = (us) => (us >= 999500 ? number(us / 1e6) + " s" : us >= 999.5 ? number(us / 1e3) + " ms" : number(us) + " µs");
const percent = (part) => (part == null ? NONE : (part * 100).toFixed(part < 0.0995 ? 1 : 0) + " %");
function times(value, told) {
  if (value == null) return NONE;
  const text = value >= 9.995 ? number(value) : value.toFixed(value >= 0.0995 ? 2 : 3);
  // What is told from 1 must not look like it.
  return (told && text === "1.00" ? value.toFixed(3) : text) + "×";
}
const ratio = (it) => (it == null ? NONE : (it.hidden ? "≈ " : "") + times(it.value, !it.hidden));
const interval = (it) => (it?.interval ? [it.interval.low, it.interval.high].map((end) => times(end, !it.hidden)).join(" – ") : NONE);
const whole = (it) => (it?.interval ? `${ratio(it)} (${interval(it)})` : ratio(it));
const count = (it) => it || NONE;
const named = (...parts) => parts.filter((part) => part).join(", ");
const VERDICTS = { agree: ["agree", "="], disagree: ["disagree", "≠"], "cannot-tell": ["cannot tell", "?"] };
const verdict = (agreement) => VERDICTS[agreement]?.[0] ?? "nothing to compare";

// Colours and marks.
const HUES = [[212, 65], [22, 78], [162, 60], [322, 45], [42, 85], [195, 65]];
const MARKS = [["circle", "●"], ["square", "■"], ["triangle-up", "▲"], ["diamond", "◆"], ["triangle-down", "▼"], ["circle-open", "○"],
  ["square-open", "□"], ["diamond-open", "◇"]];
const THEMES = { light: { text: "#1d2127", soft: "#5b6470", grid: "#e6e9ee" }, dark: { text: "#e6e8eb", soft: "#9aa3ae", grid: "#2b3037" } };
const dark = matchMedia("screen and (prefers-color-scheme: dark)");
let theme = dark.matches ? "dark" : "light";
function colour(ink, of = theme) {
  const [hue, saturation] = ink.hue == null ? [220, 6] : HUES[ink.hue];
  return `hsl(${hue}, ${saturation}%, ${of === "dark" ? 48 + 28 * ink.shade : 36 + 29 * ink.shade}%)`;
}
const swatch = (ink, glyph = "■") =>
  el("span.swatch", { style: `--light: ${colour(ink, "light")}; --dark: ${colour(ink, "dark")}` }, glyph);

// Tables. A cell is a text or an element of its own; the first of a row names it.
function table(kind, head, bodies) {
  const cell = (it, at) => (it instanceof Element && /^T[DH]$/.test(it.tagName) ? it : el(at ? "td" : "th", at ? null : { scope: "row" }, it));
  const body = ({ title, rows }) =>
    el("tbody", null,
      title ? el("tr.group", null, el("th", { scope: "rowgroup", colspan: head.length }, title)) : null,
      rows.map((row) => el("tr", null, row.map(cell))));
  const heading = el("thead", null, el("tr", null, head.map((text) => el("th", { scope: "col" }, text))));
  const made = el(kind, null, heading, bodies.map(body));
  if (made.classList.contains("sortable")) sortable(made);
  return el("div.scroll", null, made);
}
const text = (...content) => el("td.text", null, ...content);

// A click on a heading sorts by that column; another click turns the order around.
function sortable(made) {
  const headings = [...made.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    heading.tabIndex = 0;
    heading.onclick = () => {
      const down = heading.getAttribute("aria-sort") === "ascending";
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => row.cells[column]?.textContent.trim() ?? "";
      const value = (row) => parseFloat(key(row).replace(/[≈,\s]/g, ""));
      const order = (a, b) => isNaN(value(a)) - isNaN(value(b)) || value(a) - value(b) || key(a).localeCompare(key(b));
      made.tBodies[0].append(...[...made.tBodies[0].rows].sort((a, b) => (down ? order(b, a) : order(a, b))));
    };
    heading.onkeydown = (event) => event.key === "Enter" && heading.onclick();
  });
}

// Charts. Each is a caption, a place to draw and a table of what is drawn.
const charts = new Map();
function figure(caption, about, height, head, rows, draw) {
  const place = el("div.chart", { role: "img", "aria-label": `${about}: ${caption}`, style: `min-height: ${height}px` });
  charts.set(place, () => draw({ height, ...THEMES[theme] }));
  return el("figure", null, el("figcaption", null, caption), place, fold("Table", table("table", head, [{ title: "", rows }])));
}
const grid = (figures) => el("div.grid", null, figures);
const fit = (name) => (name.length > 24 ? `${name.slice(0, 12)}…${name.slice(-11)}` : name);
function layout(look, x, y, more) {
  const axis = { gridcolor: look.grid, zerolinecolor: look.grid, linecolor: look.grid, automargin: true, fixedrange: true };
  const clear = "rgba(0, 0, 0, 0)";
  return {
    height: look.height, margin: { l: 8, r: 16, t: 8, b: 42 }, paper_bgcolor: clear, plot_bgcolor: clear, showlegend: false,
    hovermode: "closest", font: { size: 11, color: look.text, family: "system-ui, sans-serif" },
    xaxis: { ...axis, automargin: false, tickangle: 0, ...x, title: { text: x.title, font: { size: 10, color: look.soft }, standoff: 4 } },
    yaxis: { ...axis, ...y, title: { text: y.title ?? "", font: { size: 10, color: look.soft }, standoff: 4 } }, ...more,
  };
}
// Rows from the top, each with its name.
const rowsAxis = (names) => ({ tickvals: names.map((_, at) => at), ticktext: names.map((name) => html(fit(name))), range: [names.length - 0.5, -0.5], zeroline: false, showgrid: false });
const heightOf = (rows) => 58 + 21 * rows.length;

// Round values of a logarithmic axis: the library writes them over each other. Short ranges it divides well.
function ticks(low, high, show) {
  const decades = Math.log10(high / low);
  if (!(decades > 0.4)) return {};
  const factors = decades > 3 ? [1] : decades > 0.8 ? [1, 2, 5] : [1, 1.5, 2, 3, 5, 7];
  const tickvals = [];
  for (let at = Math.floor(Math.log10(low)); at <= Math.log10(high); at++) tickvals.push(...factors.map((it) => it * 10 ** at));
  return { tickvals, ticktext: tickvals.map(show) };
}

// The spread of a quantity as bars and whiskers take it.
const reach = (spreads, factor, more) => ({
  type: "data", symmetric: false, thickness: 1.2, width: 3, ...more,
  array: spreads.map((it) => (it ? (it.max - it.median) / factor : null)),
  arrayminus: spreads.map((it) => (it ? (it.median - it.min) / factor : null)),
});
const SPREAD = ["", "Median", "Smallest", "Largest"];
const spreadRow = (name, quantity, it, cell) => [name, ...(it ? [it.median, it.min, it.max].map(quantity.show) : [absence(cell), NONE, NONE])];
const absence = (cell) => (cell?.figures ? "unknown" : `0 ${cell?.kind === "missing" || !cell ? "not run" : cell.kind}`);
const marks = (cell) => (cell?.notes ?? []).map((note) => `[${note}]`).join("");

/** What a panel with a row for each configuration of a group shows of a workload. */
function shownIn(x, group, workload) {
  const members = group.configurations.filter(({ name }) => !x.plan.without.includes(name));
  const cells = members.map(({ name }) => x.cell(name, workload));
  return { members, cells, colours: () => members.map(({ name }) => colour(x.ink(name))), axis: rowsAxis(members.map((it) => it.short)) };
}
/** Bars of the configurations of a group under a workload. */
function bars(x, group, workload, quantity) {
  const { members, cells, colours, axis } = shownIn(x, group, workload);
  const of = (get) => cells.map((cell) => (cell?.figures && get(cell.figures)) || null);
  const [spreads, behind] = [of(quantity.of), quantity.behind ? of(quantity.behind) : []];
  const scaled = (it) => (it?.median ?? 0) / quantity.factor;
  const words = cells.map((cell, at) =>
    `${spreads[at] ? quantity.show(spreads[at].median) : absence(cell)}${behind[at] ? ` | ${quantity.show(behind[at].median)}` : ""} ${marks(cell)}`);
  const rows = members.map(({ short: name }, at) => {
    const row = spreadRow(name, quantity, spreads[at], cells[at]);
    return quantity.behind ? [...row, behind[at] ? quantity.show(behind[at].median) : NONE] : row;
  });
  const head = quantity.behind ? [...SPREAD, quantity.behindName] : SPREAD;
  return figure(named(workload, group.title), named(quantity.name, quantity.unit), heightOf(members), head, rows, (look) => {
    const y = members.map((_, at) => at);
    const ends = spreads.map((it, at) => Math.max((it?.max ?? 0) / quantity.factor, scaled(behind[at])));
    const bar = { type: "bar", orientation: "h", y, hoverinfo: "text", hovertext: cells.map((cell) => html(cell?.hover)) };
    const traces = [
      { ...bar, x: spreads.map(scaled), width: quantity.behind ? 0.35 : 0.65, marker: { color: colours() }, error_x: reach(spreads, quantity.factor, { color: look.text }) },
      { type: "scatter", mode: "text", y, x: ends, text: words.map((word) => " " + word), textposition: "middle right", hoverinfo: "skip", cliponaxis: false },
    ];
    if (quantity.behind) traces.unshift({ ...bar, x: behind.map(scaled), width: 0.75, marker: { color: colours(), opacity: 0.35 } });
    const range = [0, (Math.max(...ends) || 1) * (quantity.behind ? 1.7 : 1.45)];
    return [traces, layout(look, { title: quantity.unit, tickformat: "~s", range, nticks: 5 }, axis, { barmode: "overlay" })];
  });
}

/** Curves of a quantity along the axis, for one workload. */
function curves(x, part, workload, quantity) {
  const { axis, values, others } = x.plan.curves;
  const numbers = values.map(Number);
  const get = (cell) => (cell?.figures && quantity.of(cell.figures)) || null;
  const lines = part.curves.map((curve) => ({ name: curve.short, cells: curve.configurations.map((name) => name && x.cell(name, workload)), head: curve.configurations.find((name) => name) }));
  const levels = others.map((name) => ({ name, head: name, cell: x.cell(name, workload) }));
  const shown = (cell) => (get(cell) ? quantity.show(get(cell).median) + " " + marks(cell) : cell ? absence(cell) + " " + marks(cell) : NONE);
  const rows = [...lines.map((line) => [line.name, ...line.cells.map(shown)]), ...levels.map((level) => [level.name, ...values.map(() => shown(level.cell))])];
  return figure(named(workload, part.title), `${named(quantity.name, quantity.unit)} by ${axis}`, 270, [axis, ...values], rows, (look) => {
    const all = [...lines.flatMap((line) => line.cells), ...levels.map((level) => level.cell)].map(get).filter((it) => it?.median != null);
    const [low, high] = [Math.min(...all.map((it) => it.min)), Math.max(...all.map((it) => it.max))];
    // Lines a factor of thirty apart would lie on the bottom of a linear chart.
    const log = low > 0 && (quantity.log || high / low > 30);
    const crosses = [];
    const traces = lines.map((line) => {
      const ink = x.ink(line.head);
      const spreads = line.cells.map(get);
      line.cells.forEach((cell, at) => cell && !cell.figures && crosses.push({
        xref: "x", yref: "paper", y: 0, x: numbers.every((it) => it > 0) ? Math.log10(numbers[at]) : numbers[at], text: `×${marks(cell)}`,
        showarrow: false, yanchor: "bottom", font: { color: colour(ink), size: 12 }, hovertext: html(cell.hover),
      }));
      return {
        x: numbers, y: spreads.map((it) => (it ? it.median / quantity.factor : null)), mode: "lines+markers+text", hoverinfo: "text",
        hovertext: line.cells.map((cell) => html(cell?.hover)), text: line.cells.map(marks), textposition: "top right", textfont: { size: 8, color: look.soft },
        line: { color: colour(ink), width: 2 }, marker: { symbol: MARKS[ink.mark % MARKS.length][0], size: 7 },
        error_y: reach(spreads, quantity.factor, { color: colour(ink) }),
      };
    });
    const ends = [numbers[0], numbers[numbers.length - 1]];
    const level = ({ head, cell }) => ({
      x: ends, y: ends.map(() => get(cell).median / quantity.factor), mode: "lines", hoverinfo: "text", hovertext: html(cell.hover),
      line: { color: colour(x.ink(head)), width: 2, dash: "dash" },
    });
    traces.push(...levels.filter((it) => get(it.cell)).map(level));
    const along = { title: html(axis), type: numbers.every((it) => it > 0) ? "log" : "linear", tickvals: numbers, ticktext: values };
    const up = { title: quantity.unit + (log ? " (log)" : ""), type: log ? "log" : "linear", rangemode: "tozero", tickformat: "~s", ticksuffix: quantity.suffix ?? "", nticks: 7,
      ...(log ? ticks(low / quantity.factor, high / quantity.factor, (it) => quantity.show(it * quantity.factor)) : {}) };
    return [traces, layout(look, along, up, { annotations: crosses })];
  });
}

const PERCENTILES = ["p50_us", "p90_us", "p99_us", "p999_us"];
/** From the median to the thousandth that is slowest, a line a configuration. */
function percentiles(x, group, workload) {
  const { members, cells, colours, axis } = shownIn(x, group, workload);
  const of = (cell) => cell?.figures && PERCENTILES.map((field) => cell.figures.latency[field].median);
  const rows = members.map(({ short: name }, at) => [name, ...(of(cells[at])?.map(time) ?? [absence(cells[at]), NONE, NONE, NONE])]);
  return figure(named(workload, group.title), "Latency percentiles", heightOf(members), ["", "Median", "p90", "p99", "p99.9"], rows, (look) => {
    const traces = members.map(({ name }, at) => ({
      x: of(cells[at])?.map((us) => us / 1e6) ?? [], y: PERCENTILES.map(() => at), mode: "lines+markers", hoverinfo: "text",
      hovertext: html(`${name}\n${rows[at].slice(1).map((it, place) => ["median", "p90", "p99", "p99.9"][place] + " " + it).join(", ")}`),
      line: { color: colours()[at], width: 2 },
      marker: {
        symbol: ["circle", "line-ns-open", "line-ns-open", "circle-open"], size: [8, 7, 11, 7], opacity: 1, color: colours()[at],
        line: { width: 2, color: colours()[at] },
      },
    }));
    const all = cells.flatMap((cell) => of(cell) ?? []).map((us) => us / 1e6).filter((it) => it > 0);
    const along = { title: "latency (log)", type: "log", tickformat: "~s", ticksuffix: "s", ...ticks(Math.min(...all), Math.max(...all), (it) => time(it * 1e6)) };
    const absent = members.flatMap((_, at) => (of(cells[at]) ? [] : [{
      xref: "paper", x: 0, y: at, text: `${absence(cells[at])} ${marks(cells[at])}`, showarrow: false, xanchor: "left", font: { color: look.soft },
    }]));
    return [traces, layout(look, along, axis, { annotations: absent })];
  });
}

/** Ratios with their intervals, ours filled, published ones hollow. A row: `name`, `ink`, `ours`, `theirs`, `agreement`, `hover`. */
function ratios(caption, rows) {
  const published = rows.some((row) => row.theirs != null);
  const head = ["", "Ours", "Interval", ...(published ? ["Published", "Direction"] : [])];
  const cells = rows.map((row) => [row.name, ratio(row.ours), interval(row.ours), ...(published ? [times(row.theirs), verdict(row.agreement)] : [])]);
  return figure(caption, "Ratios to the baseline", heightOf(rows), head, cells, (look) => {
    const places = rows.map((_, at) => at);
    const ours = (get) => rows.map((row) => (row.ours ? get(row.ours) : null));
    const low = ours((it) => it.interval?.low ?? it.value), high = ours((it) => it.interval?.high ?? it.value), values = ours((it) => it.value);
    // Intervals of few noisy rounds can be endless; a chart that shows them whole shows nothing else.
    const bounds = [...low, ...high].filter((it) => it >= 0.01 && it <= 100);
    const logs = [...values, ...rows.map((row) => row.theirs), ...bounds, 1].filter((it) => it > 0).map(Math.log10);
    const pad = Math.max(0.03, (Math.max(...logs) - Math.min(...logs)) * 0.07);
    const range = [Math.min(...logs) - pad, Math.max(...logs) + pad];
    const line = (from, to, more) => rows.flatMap((row, at) => (from[at] > 0 && to[at] > 0
      ? [{ type: "line", x0: from[at], x1: to[at], y0: at, y1: at, layer: "between", line: { color: colour(row.ink), ...more } }] : []));
    const theirs = rows.map((row) => row.theirs ?? null);
    const points = { y: places, mode: "markers", hoverinfo: "text", hovertext: rows.map((row) => html(row.hover)) };
    const traces = [
      { ...points, x: theirs, marker: { symbol: "circle-open", size: 9, color: rows.map((row) => colour(row.ink)), line: { width: 2 } } },
      { ...points, x: values, marker: { size: 8, color: rows.map((row) => colour(row.ink)), opacity: rows.map((row) => (row.ours?.hidden ? 0.4 : 1)) } },
    ];
    const one = { type: "line", x0: 1, x1: 1, yref: "paper", y0: 0, y1: 1, layer: "below", line: { color: look.text, width: 1 } };
    const signs = rows.map((row, at) => ({
      xref: "paper", x: 1, xanchor: "left", y: at, text: VERDICTS[row.agreement]?.[1] ?? "", showarrow: false, font: { color: look.soft },
    }));
    const along = { title: "times the baseline (log)", type: "log", tickformat: "~g", range, ...ticks(10 ** range[0], 10 ** range[1], number) };
    const shapes = [one, ...line(low, high, { width: 2 }), ...line(theirs, values, { width: 1, dash: "dot" })];
    return [traces, layout(look, along, rowsAxis(rows.map((row) => row.name)), { shapes, annotations: signs })];
  });
}
// The library reads a little HTML in its texts.
const html = (words) => (words ?? "").replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/\n/g, "<br>");

// Sections.
const PER_CPU = "requests/CPU s";
const quantities = (x) => ({
  measure: { ...x.plan.measure, of: (figures) => figures[x.plan.measure.field], show: (value) => short(value / x.plan.measure.factor) },
  p99: { name: "Latency, 99th percentile", unit: "latency", suffix: "s", factor: 1e6, log: true, of: (figures) => figures.latency.p99_us, show: time },
  server: { name: "Requests a second of the server's time", unit: PER_CPU, factor: 1, of: (figures) => figures.requests_per_server_cpu_s, show: short },
  all: {
    name: "Server and guest", unit: PER_CPU, factor: 1, of: (figures) => figures.requests_per_cpu_s, show: short,
    behind: (figures) => figures.requests_per_server_cpu_s, behindName: "Server alone",
  },
});
const heading = (...parts) => (named(...parts) ? el("h4", null, named(...parts)) : null);
const links = (x, cell) =>
  cell.notes.length ? el("sup", null, cell.notes.map((note) => el("a", { href: `#${x.id}-note-${note}` }, `[${note}]`))) : null;
const badge = (quick) => (quick ? [" ", el("span.badge", null, "QUICK")] : null);
const tally = (summary) => {
  const found = Object.entries({ agree: summary.tally.agree, disagree: summary.tally.disagree, "cannot-tell": summary.tally.cannot_tell }).filter(([, of]) => of);
  return found.length ? found.map(([kind, of]) => el(`span.verdict.${kind}`, null, `${of} ${verdict(kind)}`)) : el("span.about", null, "nothing published to compare");
};
/** A panel of curves for each workload, or of bars in the groups and facets given. */
const curvePanels = (x, quantity) => grid(x.plan.curves.parts.flatMap((part) => x.workloads.map((workload) => curves(x, part, workload, quantity))));
const barPanels = (x, facets, panel) => x.plan.groups.flatMap((group) => facets.map(({ title, workloads }) =>
  [heading(group.title, title), grid(workloads.map((workload) => panel(x, group, workload)))]));
/** The chosen workloads, and all of them behind a fold. */
const some = (x, panel) => {
  const { chosen } = x.plan;
  const panels = (workloads) => barPanels(x, [{ title: "", workloads }], panel);
  return [panels(chosen), chosen.length < x.workloads.length ? fold("All workloads", panels(x.workloads)) : null];
};

function legend(x) {
  const shown = new Map();
  const add = (name, head, glyph) => shown.has(name) || shown.set(name, el("li", null, swatch(x.ink(head), glyph), name));
  const { curves: along, groups, without } = x.plan;
  for (const curve of along?.parts.flatMap((part) => part.curves) ?? []) {
    const head = curve.configurations.find((name) => name);
    add(curve.short, head, MARKS[x.ink(head).mark % MARKS.length][1]);
  }
  for (const name of along?.others ?? []) add(name, name, "╌╌");
  if (!along) for (const one of groups.flatMap((group) => group.configurations)) without.includes(one.name) || add(one.short, one.name);
  return el("ul.legend", null, ...shown.values());
}

function standings(x) {
  const rows = x.summary.standings.map((it) => [
    el("th", { scope: "row" }, swatch(x.ink(it.configuration)), it.configuration),
    it.mean ? ratio(it.mean) : it.configuration === it.baseline ? "baseline" : NONE, interval(it.mean),
    ...[it.faster, it.hidden, it.slower].map(count), times(it.per_server_cpu), times(it.per_cpu), ...[it.failed, it.unsupported].map(count),
  ]);
  const head = ["Configuration", "Mean ratio", "Interval", "Faster", "Hidden by noise", "Slower", "Requests a server CPU s", "Requests a CPU s", "Failed", "Unsupported"];
  const about = how(`Geometric mean of ${x.plan.measure.name.toLowerCase()} as a ratio to the baseline of each table, over the workloads that both were measured under.`);
  const all = table("table.sortable", head, [{ rows }]);
  // Curves say it themselves, and a mean over points of a curve says little.
  if (x.plan.curves) return fold("Every configuration over all workloads", about, all);
  const charted = x.plan.groups.map((group) => [group, group.configurations.flatMap(({ name, short: label }) => {
    const it = x.summary.standings.find((standing) => standing.configuration === name);
    return it?.mean ? [{ name: label, ink: x.ink(name), ours: it.mean, hover: `${name}\n${whole(it.mean)} over ${it.compared} workloads` }] : [];
  })]);
  const panels = charted.filter(([, rows]) => rows.length).map(([group, rows]) => ratios(`${group.title || "All configurations"} beside ${group.baseline}`, rows));
  return [el("h3", null, "Over all workloads"), about, how("Lines are intervals; pale where noise hides a difference."), grid(panels), all];
}

/** A cell with its ratio, or with its figure where it has none; `both` shows both. */
function ratioCell(x, cell, both) {
  if (!cell) return el("td");
  const it = cell.ratio;
  const side = !it ? "plain" : it.hidden ? "same" : it.value > 1 ? "up" : "down";
  // Four times the baseline, or a quarter, is as strong as colours get.
  const strength = it?.value > 0 ? 10 + 55 * Math.min(1, Math.abs(Math.log2(it.value)) / 2) : 0;
  const { of, show } = x.quantities.measure;
  const figures = () => {
    if (!cell.figures) return cell.kind === "missing" ? NONE : el("span.hatched", null, "0");
    const median = show(of(cell.figures).median);
    return both ? [median, el("br"), it ? ratio(it) : "baseline"] : it ? ratio(it) : median;
  };
  return el(`td.${side}`, { title: cell.hover, style: `--strength: ${strength}%` }, figures(), links(x, cell));
}

function matrix(x) {
  const { curves: along, groups, facets, measure } = x.plan;
  const colours = "Blue is faster than the baseline, orange slower, and the stronger the farther; grey with ≈ is hidden by noise. Hatched: shows 0 for the reason in the note.";
  if (along) {
    const row = (workload, name, places) => [name, ...places.map((place) => ratioCell(x, place && x.cell(place, workload), true))];
    const bodies = x.workloads.flatMap((workload) => [
      ...along.parts.map((part) => ({ title: named(workload, part.title), rows: part.curves.map((curve) => row(workload, curve.short, curve.configurations)) })),
      { rows: along.others.map((name) => row(workload, name, [name])) },
    ]);
    return [el("h3", null, `Medians, ${measure.unit}`), how(`Below each the ratio to its baseline. ${colours}`), table("table.matrix", [along.axis, ...along.values], bodies)];
  }
  const names = groups.flatMap((group) => group.configurations.map((one) => one.name));
  // The longer side goes down the page.
  const down = x.workloads.length >= names.length;
  const bodies = down
    ? facets.map(({ title, workloads }) => ({ title, rows: workloads.map((workload) => [workload, ...names.map((name) => ratioCell(x, x.cell(name, workload)))]) }))
    : groups.map(({ title, configurations }) => ({ title, rows: configurations.map(({ name }) => [name, ...x.workloads.map((workload) => ratioCell(x, x.cell(name, workload)))]) }));
  const head = down ? ["Workload", ...names] : ["Configuration", ...x.workloads];
  return [el("h3", null, "Ratio to the baseline, workload by workload"), how(`${colours} The baseline shows its median in ${measure.unit}.`), table("table.matrix", head, bodies)];
}

function throughput(x) {
  const { curves: along, facets, measure, without } = x.plan;
  const about = along
    ? "Lines join medians; whiskers reach from the smallest to the largest round. A cross on the axis is a combination that shows 0 for the reason in the note."
    : "Bars are medians; whiskers reach from the smallest to the largest round. Every panel has a scale of its own, from 0.";
  const absent = without.length && !along ? how("0 under every workload, and left out of the panels: ", without.flatMap((name, at) =>
    [at ? ", " : null, name, x.workloads.length ? links(x, x.cell(name, x.workloads[0])) : null]), ".") : null;
  const panels = along ? curvePanels(x, x.quantities.measure) : barPanels(x, facets, (...of) => bars(...of, x.quantities.measure));
  return [el("h3", null, measure.name), how(about), legend(x), absent, panels];
}

function published(x) {
  const { published: theirs, configurations } = x.experiment;
  if (!theirs) return null;
  const cells = x.cells.filter((cell) => cell.published);
  const row = (name, cell) => {
    const it = cell.published;
    const words = `published as ${it.figure.their_configuration}: ${it.theirs ? times(it.theirs) : "not supported"}\nours: ${it.ours ? whole(it.ours) : "not measured"}`;
    return { name, ink: x.ink(cell.configuration), ours: it.ours, theirs: it.theirs, agreement: it.agreement, hover: `${cell.configuration}, ${cell.workload}\n${words}\n${verdict(it.agreement)}` };
  };
  const drawn = cells.filter((cell) => cell.published.agreement && !x.plan.without.includes(cell.configuration));
  const means = x.summary.standings.filter((it) => it.published != null && it.published_ours).map((it) => ({
    name: it.configuration, ink: x.ink(it.configuration), ours: it.published_ours, theirs: it.published, agreement: it.agreement,
    hover: `${it.configuration}\npublished: ${times(it.published)}\nours: ${whole(it.published_ours)}\n${verdict(it.agreement)}`,
  }));
  // A panel for each configuration with a row a workload, or the other way around: the fewer panels.
  const [by, other, keys] = x.workloads.length > 4 ? ["configuration", "workload", configurations.map((it) => it.name)] : ["workload", "configuration", x.workloads];
  const panels = keys.map((key) => [key, drawn.filter((cell) => cell[by] === key)]).filter(([, found]) => found.length);
  const rows = cells.map((cell) => {
    const it = cell.published;
    const value = number(it.figure.value) + (it.figure.value === 0 ? " (not supported)" : "");
    return [cell.workload, text(cell.configuration), text(it.figure.their_configuration), value, times(it.theirs), whole(it.ours), text(verdict(it.agreement))];
  });
  const head = ["Workload", "Configuration", "Published as", `Published, ${theirs.unit}`, "Their ratio", "Our ratio", "Direction"];
  return [
    el("h3", null, "Beside the published figures"),
    how(`Ratios to each table's own baseline (${x.plan.published_baselines.join(", ")}): theirs from ${theirs.source}, in ${theirs.unit}; ours measured here. `,
      "Filled: ours with its interval, pale where noise hides a difference. Hollow: published. = agree, ≠ disagree, ? cannot tell. ",
      "Configurations without a figure of ours are in the table alone."),
    x.workloads.length > 1 && means.length ? grid([ratios("Geometric means over the workloads of both", means)]) : null,
    drawn.length ? grid(panels.map(([key, found]) => ratios(key, found.map((cell) => row(cell[other], cell))))) : el("p", null, "No published figure has a counterpart here."),
    fold("All published figures with ours", table("table.sortable", head, [{ rows }])),
  ];
}

function latency(x) {
  const about = how("From the median, filled, over p90 and p99 to p99.9, hollow; medians over the rounds. The farther left, the better; a short line is a steady one.");
  if (!x.plan.curves) return [el("h3", null, "Latency"), about, some(x, percentiles)];
  return [
    el("h3", null, x.quantities.p99.name), how("Of a hundred requests the slowest took this long: the lower, the better."), legend(x), curvePanels(x, x.quantities.p99),
    fold("Median to 99.9th percentile, all configurations", about, barPanels(x, [{ title: "", workloads: x.workloads }], percentiles)),
  ];
}

function processor(x) {
  const { server, all } = x.quantities;
  const has = (quantity) => x.cells.some((cell) => cell.figures && quantity.of(cell.figures));
  if (!has(server) && !has(all)) return [el("h3", null, "Processor time"), how("No processor time was recorded in this run.")];
  const about = "Requests for each second of processor time: the higher, the cheaper a request.";
  const title = el("h3", null, "Requests a CPU second");
  if (x.plan.curves) {
    const part = (words, quantity) => (has(quantity) ? [heading(words), curvePanels(x, quantity)] : null);
    return [title, how(about), legend(x), part("Of the server's time", server), part("Of server and guest together", { ...all, name: "Requests a second of all processor time" })];
  }
  const both = "Filled, and the first figure: of the time of server and guest (or load generator) together. Pale, and the second: of the server's alone.";
  return [title, how(`${about} ${both}`), some(x, (...of) => bars(...of, all))];
}

function figures(x) {
  const fields = ["mean_us", ...PERCENTILES, "max_us"];
  const head = ["Workload", "Configuration", "MiB/s", "IOPS", "Smallest", "Largest", "±", "Ratio to baseline", "Mean, µs", "p50, µs", "p90, µs", "p99, µs", "p99.9, µs",
    "Max, µs", "Server CPU, s", "Guest CPU, s", "Requests a CPU s", "Rounds", "Failed"];
  const rows = x.cells.map((cell) => {
    const name = el("th", { scope: "row" }, swatch(x.ink(cell.configuration)), cell.configuration);
    const of = cell.figures;
    if (!of) return [cell.workload, name, el("td", null, "0", links(x, cell)), "0", el("td.text", { colspan: head.length - 6 }, named(cell.kind, cell.state.reason)), "0", String(cell.failures.length)];
    const it = x.quantities.measure.of(of);
    return [
      cell.workload, name, el("td", null, number(of.kib_per_s.median / 1024), links(x, cell)), number(of.iops.median), ...[it.min, it.max].map(x.quantities.measure.show),
      percent(it.uncertainty), whole(cell.ratio), ...fields.map((field) => number(of.latency[field].median)),
      ...[of.server_cpu_s, of.guest_cpu_s, of.requests_per_cpu_s].map((spread) => number(spread?.median)), String(it.rounds), String(cell.failures.length),
    ];
  });
  const about = how(`Medians over the rounds. Smallest, largest: the rounds of ${x.plan.measure.name.toLowerCase()} in ${x.plan.measure.unit}. ±: half of a 95 % interval of its median.`);
  return fold("All figures", about, table("table.sortable", head, [{ rows }]));
}

function section(entry, at) {
  const { summary, plan } = entry;
  const { experiment } = summary.header;
  const cells = summary.cells.map((cell, place) => ({ ...cell, ...plan.cells[place], kind: cell.state.state }));
  const key = (...names) => JSON.stringify(names);
  const byName = new Map(cells.map((cell) => [key(cell.configuration, cell.workload), cell]));
  const inks = new Map(experiment.configurations.map((one, place) => [one.name, plan.inks[place]]));
  const x = {
    id: `x${at}`, summary, plan, experiment, cells, workloads: experiment.workloads.map((one) => one.name),
    cell: (configuration, workload) => byName.get(key(configuration, workload)), ink: (configuration) => inks.get(configuration),
  };
  x.quantities = quantities(x);
  const overview = [standings(x), matrix(x)];
  return el("section", { id: x.id },
    el("h2", null, entry.name, badge(entry.quick)), el("p.lead", null, experiment.title), how(plan.method),
    el("div.card", null, el("h3", null, "Published"), el("blockquote", null, el("p", null, experiment.claim), el("p.about", null, experiment.source)), el("p", null, tally(summary))),
    el("div.card", null, el("h3", null, "Measured here"), el("ul", null, entry.reading.map((sentence) => el("li", null, sentence)))),
    // Curves come before their figures; of bars there are so many that the ratios show the way.
    plan.curves ? [throughput(x), overview.reverse()] : [overview, throughput(x)],
    published(x), latency(x), processor(x), figures(x),
    plan.notes.length ? el("h3", null, "Notes") : null,
    el("ol.notes", null, plan.notes.map((note, place) => el("li", { id: `${x.id}-note-${place + 1}` }, note.text, " ", el("span.about", null, `(${note.about})`)))));
}

function machine(it) {
  const processors = `${it.processors} × ${it.processor}, ${it.nodes === 1 ? "one NUMA node" : `${it.nodes} NUMA nodes`}`;
  const all = [["Processor", processors], ["Memory", `${number(it.memory_mib)} MiB`], ["Kernel", it.kernel], ["Storage", it.storage.join("\n")],
    ["Programs", it.programs.join("\n")], ["QEMU guests", it.accelerator]];
  return table("table.wrap", ["Machine", ""], [{ rows: all.filter(([, said]) => said) }]);
}

document.title = `${results.title} – vringd bench`;
const entries = results.experiments;
const contents = entries.map((entry, at) => [
  el("th", { scope: "row" }, el("a", { href: `#x${at}` }, entry.name), el("br"), el("span.about", null, entry.summary.header.experiment.title)),
  el("td", null, tally(entry.summary)), el("td", null, entry.summary.header.begun, badge(entry.quick)),
]);
document.querySelector("header").append(
  el("h1", null, results.title),
  results.quick ? el("p.quick", { role: "note" }, el("strong", null, "QUICK "), results.quick) : "",
  entries.length > 1 ? el("nav", { "aria-label": "Experiments" }, table("table.wrap", ["Experiment", "Published direction here", "Begun"], [{ rows: contents }])) : "",
  ...results.machines.map(machine));
document.querySelector("main").append(...entries.map(section));

// The library follows this script. Without it, and where it fails, tables stand in for charts.
const drawn = new Set();
function draw(place) {
  try {
    Plotly.react(place, ...charts.get(place)(), { displayModeBar: false, responsive: true });
    drawn.add(place);
  } catch (error) {
    console.error(error);
    place.nextSibling.open = true;
    place.remove();
  }
}
addEventListener("load", () => {
  if (!window.Plotly) {
    document.body.classList.add("plain");
    for (const place of charts.keys()) place.nextSibling.open = true;
    return;
  }
  const near = new IntersectionObserver((found) => {
    for (const { target } of found.filter((it) => it.isIntersecting)) {
      near.unobserve(target);
      draw(target);
    }
  }, { rootMargin: "600px" });
  for (const place of charts.keys()) near.observe(place);
  const paint = (of, places) => {
    theme = of;
    places.forEach(draw);
  };
  dark.addEventListener("change", () => paint(dark.matches ? "dark" : "light", [...drawn]));
  addEventListener("beforeprint", () => paint("light", [...charts.keys()].filter((place) => place.checkVisibility?.() ?? true)));
  addEventListener("afterprint", () => paint(dark.matches ? "dark" : "light", [...drawn]));
});
