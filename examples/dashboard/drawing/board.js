"use strict";
// Draws the board of data.js: BOARD (Grafana's JSON), PROMETHEUS (its address), FROM and TO (seconds since 1970), SCRAPE_S.
// Places, titles, queries, units, limits, words, thresholds, legends, colours and annotations are those of the JSON.

// Grafana's: a board has 24 columns, its cells are 30 px high and 8 px apart.
const COLUMNS = 24, CELL = 30, GAP = 8;
const COLOURS = {
  green: "#56a64b", yellow: "#e0b400", red: "#e02f44", blue: "#3274d9", orange: "#ff780a", purple: "#a352cc",
};
const PALETTE = ["#3274d9", "#ff780a", "#56a64b", "#a352cc", "#e0b400", "#0e8a9a", "#b5651d", "#7c7c8a"];

// -- numbers ---------------------------------------------------------------------------------------------------------

function round(value) {
  return String(Number(value.toPrecision(3)));
}

function scaled(value, steps) {
  let [factor, name] = steps[0];
  for (const step of steps) if (Math.abs(value) >= step[0]) [factor, name] = step;
  return round(value / factor) + name;
}

const SHORT = [[1, ""], [1e3, " K"], [1e6, " Mil"], [1e9, " Bil"]];
const BYTES = [[1, " B"], [1024, " KiB"], [1024 ** 2, " MiB"], [1024 ** 3, " GiB"], [1024 ** 4, " TiB"]];
const SECONDS = [[1e-6, " µs"], [1e-3, " ms"], [1, " s"], [60, " min"], [3600, " hour"], [86400, " day"]];

// Grafana's names of the units on the boards.
const UNITS = {
  short: value => scaled(value, SHORT),
  cps: value => scaled(value, SHORT) + " c/s",
  bytes: value => scaled(value, BYTES),
  Bps: value => scaled(value, BYTES) + "/s",
  s: value => value === 0 ? "0 s" : scaled(value, SECONDS),
  percentunit: value => round(value * 100) + "%",
};

function distances(unit) {
  if (unit === "bytes" || unit === "Bps") return Array.from({length: 50}, (_, power) => 2 ** power);
  const tens = Array.from({length: 16}, (_, power) => [1, 2, 5].map(digit => digit * 10 ** (power - 6))).flat();
  if (unit !== "s") return tens;
  const clock = [15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400];
  return [...tens.filter(value => value < 15), ...clock, ...tens.filter(value => value > 86400)];
}

// The distance between two lines of an axis from 0 to `top`, which has at most four lines.
function distance(top, unit) {
  return distances(unit).find(value => top / value <= 4);
}

// -- Prometheus ------------------------------------------------------------------------------------------------------

function filled(expression, step) {
  const rate = Math.max(step + SCRAPE_S, 4 * SCRAPE_S);
  let text = expression.replaceAll("$__rate_interval", `${rate}s`).replaceAll("$__range", `${Math.ceil(TO - FROM)}s`);
  for (const variable of BOARD.templating.list) {
    if (variable.allValue) text = text.replaceAll(`$${variable.name}`, variable.allValue);
  }
  return text;
}

async function ask(path, parameters) {
  const answer = await (await fetch(`${PROMETHEUS}/api/v1/${path}?${new URLSearchParams(parameters)}`)).json();
  if (answer.status !== "success") throw new Error(answer.error);
  return answer.data.result;
}

async function lines(expression, legend, step) {
  const found = await ask("query_range", {query: filled(expression, step), start: FROM, end: TO, step});
  return found.map(({metric, values}) => ({
    metric,
    name: named(legend, metric),
    points: values.map(([at, value]) => [at * 1000, Number(value)]).filter(([, value]) => Number.isFinite(value)),
  })).filter(line => line.points.length);
}

// A line has a gap where there are no numbers.
function broken(points, step) {
  return points.flatMap(([at, value], index) => {
    const before = index ? points[index - 1][0] : at;
    return at - before > 1500 * step ? [[before + 1, null], [at, value]] : [[at, value]];
  });
}

function named(legend, metric) {
  return legend.replaceAll(/\{\{(\w+)\}\}/g, (_, label) => metric[label] ?? "").trim();
}

// -- panels ----------------------------------------------------------------------------------------------------------

function word(panel, value) {
  for (const {type, options} of panel.fieldConfig.defaults.mappings ?? []) {
    if (type === "value" && String(value) in options) return options[String(value)];
    const {from, to, result} = options;
    if (type === "range" && value >= (from ?? -Infinity) && value <= (to ?? Infinity)) return result;
  }
  return null;
}

function threshold(panel, value) {
  let colour = "green";
  for (const step of panel.fieldConfig.defaults.thresholds?.steps ?? []) {
    if (value !== null && (step.value === null || value >= step.value)) colour = step.color;
  }
  return colour;
}

function nothing(panel) {
  return panel.fieldConfig.defaults.noValue ?? "No data";
}

async function stat(panel, section) {
  const {unit} = panel.fieldConfig.defaults;
  const [{expr}] = panel.targets;
  const [sample] = await ask("query", {query: filled(expr, 1), time: TO});
  const value = sample === undefined ? null : Number(sample.value[1]);
  const said = value === null ? {text: nothing(panel)} : word(panel, value) ?? {text: UNITS[unit](value)};
  section.classList.add("stat");
  section.style.background = COLOURS[said.color ?? threshold(panel, value)];
  section.dataset.value = value;
  const text = section.appendChild(document.createElement("div"));
  text.textContent = said.text;
  if (said.text.length > 7) text.style.fontSize = "20px";
  return 1;
}

// palette-classic-by-name: a name has one colour on the whole board.
const names = [];
function colour(name) {
  if (!names.includes(name)) names.push(name);
  return PALETTE[names.indexOf(name) % PALETTE.length];
}

function chart(section) {
  const place = section.appendChild(document.createElement("div"));
  place.className = "chart";
  return echarts.init(place, null, {renderer: "svg"});
}

function timeAxis() {
  return {
    type: "time", min: FROM * 1000, max: TO * 1000, splitNumber: 5,
    axisLabel: {formatter: "{HH}:{mm}", hideOverlap: true, color: "#5f6670", fontSize: 11},
    axisLine: {lineStyle: {color: "#c8ccd1"}},
    minInterval: 60_000,
  };
}

function marks() {
  const at = annotations.flatMap(({colour, times}) => times.map(([from, to]) => ({colour, from, to})));
  return {
    silent: true, symbol: "none", animation: false, label: {show: false},
    data: at.map(({colour, from}) => ({xAxis: from, lineStyle: {color: colour, type: "dashed", width: 1.2}})),
  };
}

function areas() {
  const at = annotations.flatMap(({colour, times}) => times.map(([from, to]) => ({colour, from, to})));
  return {
    silent: true,
    data: at.filter(({from, to}) => to > from).map(({colour, from, to}) => [
      {xAxis: from, itemStyle: {color: colour, opacity: 0.12}}, {xAxis: to},
    ]),
  };
}

async function timeseries(panel, section, step) {
  const {unit, min, max, custom} = panel.fieldConfig.defaults;
  const found = (await Promise.all(panel.targets.map(each => lines(each.expr, each.legendFormat, step)))).flat();
  if (!found.length) return empty(panel, section);
  const most = Math.max(...found.flatMap(line => line.points.map(([, value]) => value))) || 1;
  const interval = max === undefined ? distance(most, unit) : max / 4;
  const {showLegend, placement} = panel.options.legend;
  const drawn = chart(section);
  drawn.setOption({
    animation: false,
    color: found.map(line => colour(line.name)),
    grid: {left: 66, right: 18, top: 10, bottom: showLegend && placement === "bottom" ? 46 : 24},
    legend: {
      show: showLegend, bottom: 0, left: 8, icon: "roundRect", itemWidth: 12, itemHeight: 4,
      textStyle: {fontSize: 11.5, color: "#24292e"},
    },
    xAxis: timeAxis(),
    yAxis: {
      type: "value", min, max: max ?? Math.max(interval, Math.ceil(most / interval) * interval), interval,
      axisLabel: {formatter: UNITS[unit], color: "#5f6670", fontSize: 11},
      splitLine: {lineStyle: {color: "#eceef0"}},
    },
    series: found.map((line, index) => ({
      type: "line", name: line.name, data: broken(line.points, step), showSymbol: false, lineStyle: {width: 1.6},
      areaStyle: {opacity: (custom?.fillOpacity ?? 0) / 100},
      ...index ? {} : {markLine: marks(), markArea: areas()},
    })),
  });
  return found.length;
}

// Periods without a gap of more than a step in which the value stays the same.
function spells(line, step) {
  const found = [];
  for (const [at, value] of line.points) {
    const last = found.at(-1);
    if (last && last.value === value && at - last.to <= 1500 * step) last.to = at;
    else found.push({value, from: at, to: at});
  }
  return found;
}

async function timeline(panel, section, step) {
  const found = (await Promise.all(panel.targets.map(each => lines(each.expr, each.legendFormat, step)))).flat();
  if (!found.length) return empty(panel, section);
  found.sort((one, other) => other.name.localeCompare(one.name));
  const drawn = chart(section);
  drawn.setOption({
    animation: false,
    grid: {left: 210, right: 18, top: 4, bottom: 22},
    xAxis: timeAxis(),
    yAxis: {
      type: "category", data: found.map(line => line.name),
      axisLabel: {color: "#24292e", fontSize: 11.5}, axisTick: {show: false}, axisLine: {show: false},
    },
    series: [{
      type: "custom",
      encode: {x: [1, 2], y: 0},
      data: found.flatMap((line, row) => spells(line, step).map(({value, from, to}) => [row, from, to, value])),
      renderItem(_, api) {
        const [x, y] = api.coord([api.value(1), api.value(0)]);
        const [end] = api.coord([api.value(2), api.value(0)]);
        const height = Math.min(api.size([0, 1])[1] * (panel.options.rowHeight ?? 0.9), 26), width = Math.max(end - x, 2);
        const {text, color} = word(panel, api.value(3)) ?? {text: String(api.value(3)), color: "blue"};
        return {
          type: "rect",
          shape: {x, y: y - height / 2, width, height},
          style: {fill: COLOURS[color]},
          textContent: {style: {text: width > 8 * text.length ? text : "", fill: "#fff", fontSize: 11}},
          textConfig: {position: "inside"},
        };
      },
    }],
  });
  return found.length;
}

function empty(panel, section) {
  const text = section.appendChild(document.createElement("div"));
  text.className = "nothing";
  text.textContent = nothing(panel);
  return 0;
}

const KINDS = {stat, timeseries, "state-timeline": timeline};

async function draw(panel, width) {
  const {x, y, w, h} = panel.gridPos;
  const section = document.querySelector("main").appendChild(document.createElement("section"));
  const column = width / COLUMNS;
  Object.assign(section.style, {
    left: `${x * column}px`, top: `${y * (CELL + GAP)}px`, width: `${w * column - GAP}px`, height: `${h * (CELL + GAP) - GAP}px`,
  });
  section.appendChild(document.createElement("h2")).textContent = panel.title;
  section.dataset.title = panel.title;
  section.title = panel.description;
  // About one point for every two pixels.
  const step = Math.max(SCRAPE_S, Math.round((TO - FROM) / (w * column / 2)));
  try {
    section.dataset.series = await KINDS[panel.type](panel, section, step);
  } catch (error) {
    section.classList.add("failed");
    section.dataset.error = String(error);
  }
}

// -- the board -------------------------------------------------------------------------------------------------------

let annotations = [];

// As in Grafana, points that are at most a step apart form one region. The value of a point may be its time.
async function annotated({name, expr, step, iconColor, useValueForTime, enable}) {
  const seconds = parseInt(step), found = enable ? await lines(expr, name, SCRAPE_S) : [];
  const times = [];
  for (const {points} of found) {
    for (const [at, value] of points.filter(([, value]) => value > 0)) {
      const time = useValueForTime ? Math.floor(value) : at, last = times.at(-1);
      if (time < FROM * 1000 || time > TO * 1000) continue;
      if (last && Math.abs(time - last[1]) <= seconds * 1000) last[1] = Math.max(last[1], time);
      else times.push([time, time]);
    }
  }
  return {name, colour: COLOURS[iconColor], times};
}

function clock(seconds) {
  return new Date(seconds * 1000).toISOString().slice(0, 19).replace("T", " ");
}

function header() {
  const bar = document.querySelector("header");
  const add = (kind, text) => {
    const made = bar.appendChild(document.createElement(kind));
    made.append(text);
    return made;
  };
  add("b", BOARD.title);
  for (const variable of BOARD.templating.list) {
    add("span", `${variable.label}: ${variable.current?.text ?? "default"}`);
  }
  for (const {name, colour, times} of annotations) {
    const made = add("span", `${name}: ${times.length}`);
    const mark = document.createElement("i");
    mark.style.background = colour;
    made.prepend(mark);
    made.dataset.annotation = name;
    made.dataset.times = times.length;
  }
  add("span", `${clock(FROM)} to ${clock(TO).slice(11)} UTC`).className = "time";
}

async function board() {
  annotations = await Promise.all(BOARD.annotations.list.map(annotated));
  header();
  const main = document.querySelector("main");
  for (const panel of BOARD.panels) await draw(panel, main.clientWidth + GAP);
  const rows = Math.max(...BOARD.panels.map(({gridPos: {y, h}}) => y + h));
  main.style.height = `${rows * (CELL + GAP)}px`;
  document.body.dataset.drawn = BOARD.panels.length;
}
board().catch(error => { document.body.dataset.error = String(error); });
