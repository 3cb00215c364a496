"use strict";
(() => {
  const { runs, growth } = JSON.parse(document.getElementById("load").textContent);
  const plots = [];
  const PALETTE = ["sound", "broken", "mid", "bad", "quiet", "ink"];
  const DASHES = [undefined, [6, 4], [2, 3], [10, 3, 2, 3]];

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const axis = (more) => ({ stroke: color("quiet"), grid: { stroke: color("line"), width: 1 }, ticks: { show: false }, ...more });
  const number = (u, value) => (value == null ? "–" : value.toFixed(value < 10 ? 1 : 0));
  const line = (label, name, dash) => ({ label, stroke: color(name), width: 2, dash, points: { show: false }, value: number });
  const draw = (place, options, data) => {
    const size = { width: place.clientWidth, height: options.height };
    plots.push({ plot: new uPlot({ cursor: { drag: { x: false, y: false } }, ...options, ...size }, data, place), place });
  };

  const faultLines = (faults) => (u) => {
    u.ctx.save();
    u.ctx.strokeStyle = color("ink");
    u.ctx.fillStyle = color("ink");
    u.ctx.lineWidth = devicePixelRatio;
    u.ctx.textAlign = "left";
    u.ctx.font = `${11 * devicePixelRatio}px system-ui`;
    u.ctx.setLineDash([4, 4]);
    for (const fault of faults) {
      const x = u.valToPos(fault.at, "x", true);
      u.ctx.globalAlpha = 0.12;
      u.ctx.fillRect(x, u.bbox.top, u.valToPos(fault.until, "x", true) - x, u.bbox.height);
      u.ctx.globalAlpha = 1;
      u.ctx.beginPath();
      u.ctx.moveTo(x, u.bbox.top);
      u.ctx.lineTo(x, u.bbox.top + u.bbox.height);
      u.ctx.stroke();
      u.ctx.fillText(fault.name, x + 3 * devicePixelRatio, u.bbox.top + 11 * devicePixelRatio);
    }
    u.ctx.restore();
  };

  const overTime = (run, unit, log) => ({
    height: 190,
    scales: { x: { time: false }, y: log ? { distr: 3 } : { range: (u, low, high) => [0, Math.max(1, high * 1.15)] } },
    axes: [axis({ values: (u, at) => at.map((t) => `${t} s`), space: 60 }), axis({ size: 56, label: unit, labelSize: 20 })],
    hooks: { draw: [faultLines(run.faults)] },
  });

  const rate = (place) => {
    const run = runs.find((each) => each.name === place.dataset.name);
    const { at, sold, refused, busy, unknown } = run.lines;
    draw(place, { ...overTime(run, "answers/s"), series: [{ label: "s" }, line("sold", "sound"), line("refused", "mid", [6, 4]), line("busy", "broken", [2, 3]), line("unknown", "bad", [10, 3, 2, 3])] },
      [at, sold, refused, busy, unknown]);
  };
  const wait = (place) => {
    const run = runs.find((each) => each.name === place.dataset.name);
    const { at, p50, p95, p99 } = run.lines;
    draw(place, { ...overTime(run, "ms", true), series: [{ label: "s" }, line("p50", "sound"), line("p95", "mid", [6, 4]), line("p99", "broken", [2, 3])] }, [at, p50, p95, p99]);
  };

  const axes = [...new Set(growth.map((record) => record.axis))];
  const choice = document.getElementById("axis");
  choice.replaceChildren(...axes.map((name) => new Option(name, name)));
  document.getElementById("growth").hidden = !axes.length;

  const grown = (id, unit, figure) => {
    const records = growth.filter((record) => record.axis === choice.value);
    const sizes = [...new Set(records.map((record) => record.size))].sort((a, b) => a - b);
    const peers = [...new Set(records.map((record) => record.peer))];
    const value = (peer, size) => { const found = records.find((r) => r.peer === peer && r.size === size); const y = found ? figure(found) : NaN; return Number.isFinite(y) ? y : null; };
    const series = peers.map((peer, i) => ({ ...line(peer, PALETTE[i % PALETTE.length], DASHES[Math.floor(i / PALETTE.length) % DASHES.length]), points: { show: true, size: 5 } }));
    draw(document.getElementById(id), {
      height: 380,
      scales: { x: { time: false, distr: 3, log: choice.value.startsWith("segments") ? 2 : 10 }, y: { range: (u, low, high) => [0, Math.max(1, high * 1.1)] } },
      axes: [axis({ label: choice.value, labelSize: 20, splits: () => sizes, values: (u, at) => at.map(String), filter: (u, at) => at }), axis({ size: 56, label: unit, labelSize: 20 })],
      series: [{ label: choice.value }, ...series],
    }, [sizes, ...peers.map((peer) => sizes.map((size) => value(peer, size)))]);
  };
  const growths = () => {
    grown("growth-speed", "orders/s", (r) => r.answers_per_second || NaN); // none in so short a window says nothing
    grown("growth-cost", "ms", (r) => (r.web_cpu_us + r.postgres_cpu_us + r.redis_cpu_us) / 1000);
  };

  const drawAll = () => {
    for (const { plot } of plots.splice(0)) plot.destroy();
    if (axes.length) growths();
    document.querySelectorAll(".rate").forEach(rate);
    document.querySelectorAll(".wait").forEach(wait);
  };
  drawAll();
  choice.addEventListener("change", drawAll);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  addEventListener("resize", () => plots.forEach(({ plot, place }) => plot.setSize({ width: place.clientWidth, height: plot.height })));
})();
