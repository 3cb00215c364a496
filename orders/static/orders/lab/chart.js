// Stock and orders over time. Below zero is what was sold and isn't there.

const axis = (more) => ({ ticks: { show: false }, font: "12px system-ui", ...more });

// A canvas knows no light-dark(): the colour is asked of an element that wears it.
function resolved(name) {
  const probe = document.createElement("i");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

const below = (u) => {
  const zero = u.valToPos(0, "y", true);
  const { left, width, top, height } = u.bbox;
  u.ctx.save();
  u.ctx.globalAlpha = 0.12;
  u.ctx.fillStyle = resolved("bad");
  u.ctx.fillRect(left, zero, width, Math.max(0, top + height - zero));
  u.ctx.globalAlpha = 1;
  u.ctx.strokeStyle = resolved("text");
  u.ctx.lineWidth = devicePixelRatio;
  u.ctx.setLineDash([4, 4]);
  u.ctx.beginPath();
  u.ctx.moveTo(left, zero);
  u.ctx.lineTo(left + width, zero);
  u.ctx.stroke();
  u.ctx.restore();
};

/** Draw the stock of a race into `place`; returns a function that shows it up to a moment, in ms. */
export function drawStock(place, race, end) {
  const { ms, left, sold } = race.stock;
  place.replaceChildren();
  if (!ms.length) return () => {};
  const really = sold.map((n) => race.initial - n);
  const low = Math.min(0, ...left, ...really);
  const stepped = uPlot.paths.stepped({ align: 1 });
  const line = (label, name, dash) => ({ label, stroke: resolved(name), width: 2, dash, paths: stepped, points: { show: false } });
  const soft = resolved("soft");
  const grid = resolved("line");
  const plot = new uPlot({
    width: place.clientWidth,
    height: 190,
    cursor: { drag: { x: false, y: false } },
    scales: { x: { time: false, range: () => [0, end] }, y: { range: () => [low - 1, Math.max(race.initial, ...left) + 1] } },
    axes: [axis({ stroke: soft, grid: { stroke: grid }, values: (u, at) => at.map((t) => `${t} ms`), space: 70, size: 30 }), axis({ stroke: soft, grid: { stroke: grid }, size: 40 })],
    series: [{ label: "ms" }, line(gettext("the page says"), "good"), line(gettext("really left"), "bad", [6, 4])],
    hooks: { drawClear: [below] },
  }, [ms, left, really], place);
  return (moment) => {
    const seen = ms.findLastIndex((at) => at <= moment) + 1;
    const upTo = (values) => (seen ? [...values.slice(0, seen), values[seen - 1]] : []);
    plot.setData([seen ? [...ms.slice(0, seen), Math.max(moment, ms[seen - 1])] : [], upTo(left), upTo(really)]);
  };
}

/** What the page said and what was sold at a moment. */
export function stockAt(race, moment) {
  const { ms, left, sold } = race.stock;
  const at = ms.findLastIndex((when) => when <= moment);
  return at < 0 ? { left: race.initial, sold: 0 } : { left: left[at], sold: sold[at] };
}
