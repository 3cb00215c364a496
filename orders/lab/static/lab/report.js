"use strict";
(() => {
  const { variants, stock } = JSON.parse(document.getElementById("race").textContent);
  const names = variants.map((v) => v.name);
  const plots = [];

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const axis = (more) => ({ stroke: color("quiet"), grid: { stroke: color("line"), width: 1 }, ticks: { show: false }, ...more });
  const draw = (place, options, data) => {
    const size = { width: place.clientWidth, height: options.height };
    plots.push({ plot: new uPlot({ ...options, ...size }, data, place), place });
  };

  // Strategies lie at 0, 1, 2 … on the x scale, with half a step of room at both ends.
  const byStrategy = (unit) => ({
    height: 340,
    padding: [null, 36, null, null],
    cursor: { drag: { x: false, y: false }, points: { show: false } },
    scales: { x: { time: false, range: () => [-0.6, names.length - 0.4] }, y: { range: (u, low, high) => [0, Math.max(1, high * 1.1)] } },
    axes: [
      axis({
        splits: () => names.map((_, i) => i), values: (u, at) => at.map((i) => names[i]),
        rotate: -45, size: 130, gap: 4, grid: { show: false }, font: "12px ui-monospace, monospace",
      }),
      axis({ size: 56, label: unit, labelSize: 22 }),
    ],
  });
  const x = names.map((_, i) => i);
  const which = { label: "strategy", value: (u, i) => (i == null ? "–" : names[i]) };
  const number = (u, value) => (value == null ? "–" : value.toFixed(value < 10 ? 1 : 0));

  const throughput = () => {
    const bars = uPlot.paths.bars({ size: [0.6, 60] });
    const of = (sound) => variants.map((v) => (v.sound === sound ? v.orders_per_second : null));
    const series = (label, name) => ({ label, stroke: color(name), fill: color(name), width: 0, paths: bars, points: { show: false }, value: number });
    draw(document.getElementById("throughput-plot"),
      { ...byStrategy("orders/s"), series: [which, series("sound", "sound"), series("broken", "broken")] }, [x, of(true), of(false)]);
  };

  const latency = () => {
    // Three shapes as well as three colors: a bar up to p50, a dot at p95, a ring at p99.
    const bars = uPlot.paths.bars({ size: [0.6, 60] });
    const none = () => null;
    const dots = (label, name, fill) => ({ label, stroke: color(name), paths: none, value: number, points: { show: true, size: fill === "transparent" ? 13 : 8, width: 2, stroke: color(name), fill } });
    draw(document.getElementById("latency-plot"), {
      ...byStrategy("ms"),
      series: [which,
        { label: "p50 (bar)", stroke: color("bar"), fill: color("bar"), width: 0, paths: bars, points: { show: false }, value: number },
        dots("p95 (dot)", "mid", color("mid")), dots("p99 (ring)", "ink", "transparent")],
    }, [x, variants.map((v) => v.p50_ms), variants.map((v) => v.p95_ms), variants.map((v) => v.p99_ms)]);
  };

  const zeroLine = (u) => {
    const y = u.valToPos(0, "y", true);
    u.ctx.save();
    u.ctx.strokeStyle = color("ink");
    u.ctx.lineWidth = devicePixelRatio;
    u.ctx.setLineDash([4, 4]);
    u.ctx.beginPath();
    u.ctx.moveTo(u.bbox.left, y);
    u.ctx.lineTo(u.bbox.left + u.bbox.width, y);
    u.ctx.stroke();
    u.ctx.restore();
  };

  const stockOverTime = (place) => {
    const { ms, page, truth } = stock[place.dataset.name];
    const stepped = uPlot.paths.stepped({ align: 1 });
    const line = (label, name, dash) => ({ label, stroke: color(name), width: 2, dash, paths: stepped, points: { show: false } });
    draw(place, {
      height: 230,
      cursor: { drag: { x: false, y: false } },
      scales: { x: { time: false }, y: { range: (u, low, high) => [Math.min(0, low) - 1, Math.max(1, high) + 1] } },
      axes: [axis({ values: (u, at) => at.map((t) => `${t} ms`), space: 70 }), axis({ size: 46 })],
      series: [{ label: "ms" }, line("the page says", "sound"), line("really left", "broken", [6, 4])],
      hooks: { draw: [zeroLine] },
    }, [ms, page, truth]);
  };

  const drawAll = () => {
    for (const { plot } of plots.splice(0)) plot.destroy();
    throughput();
    latency();
    document.querySelectorAll(".stock").forEach(stockOverTime);
  };
  drawAll();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  addEventListener("resize", () => plots.forEach(({ plot, place }) => plot.setSize({ width: place.clientWidth, height: plot.height })));
})();
