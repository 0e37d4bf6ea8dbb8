"use strict";
// The timeline under the pointer: a line, what lived at that moment, and a closer look by
// dragging. Without it the page says the same, but for the moments.
(() => {
  const data = JSON.parse(document.getElementById("timeline").textContent);
  const svg = document.querySelector(".plot svg");
  if (!data || !svg) return;
  const tip = document.querySelector(".tip");
  const box = svg.viewBox.baseVal, whole = [box.width, box.height];
  const LEFT = 66, RIGHT = 12, TOP = 16, BOTTOM = whole[1] - 44;
  const count = data.live.length;
  if (!count) return;
  const make = (name, values) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const key in values) node.setAttribute(key, values[key]);
    return svg.appendChild(node);
  };
  const line = make("line", { y1: TOP, y2: BOTTOM + 16, stroke: "currentColor",
    "stroke-width": 1, visibility: "hidden", "vector-effect": "non-scaling-stroke" });
  const chosen = make("rect", { y: TOP, height: BOTTOM - TOP, fill: "currentColor",
    opacity: .12, visibility: "hidden" });

  const size = (bytes) => {
    let unit = 0;
    while (bytes >= 1024 && unit < 4) { bytes /= 1024; unit++; }
    return `${bytes.toFixed(unit && bytes % 1 ? 2 : 0)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
  };
  const seconds = (at) => at < 120 ? `${at.toFixed(at < 1 ? 4 : 2)} s`
    : `${Math.floor(at / 60)} min ${String(Math.floor(at % 60)).padStart(2, "0")} s`;
  const row = (colour, name, bytes) => {
    const tr = document.createElement("tr"), one = tr.insertCell(), two = tr.insertCell();
    if (colour) one.appendChild(document.createElement("i")).style.background = colour;
    one.append(name);
    two.textContent = size(bytes);
    return tr;
  };
  // Where the pointer is in the drawing's own units.
  const place = (event) => {
    const at = new DOMPoint(event.clientX, event.clientY)
      .matrixTransform(svg.getScreenCTM().inverse());
    return Math.min(Math.max(at.x, LEFT), whole[0] - RIGHT);
  };
  const interval = (x) => Math.min(count - 1, Math.max(0, Math.floor(
    (x - LEFT) / (whole[0] - LEFT - RIGHT) * count)));

  let from = null;
  const show = (event) => {
    const x = place(event), i = interval(x);
    line.setAttribute("x1", x);
    line.setAttribute("x2", x);
    line.setAttribute("visibility", "visible");
    if (from !== null) {
      chosen.setAttribute("x", Math.min(x, from));
      chosen.setAttribute("width", Math.abs(x - from));
      chosen.setAttribute("visibility", "visible");
    }
    const step = data.steps.filter((s) => s[0] <= data.seconds[i]).pop();
    const title = document.createElement("b"), table = document.createElement("table");
    title.textContent = `${seconds(data.seconds[i])}, ` +
      `${data.phases[data.phase[i]] || "outside phases"}${step ? `, step ${step[1]}` : ""}`;
    table.append(row(null, "live", data.live[i]));
    for (const name of [...data.order].reverse())
      if (data.categories[name] && data.categories[name][i])
        table.append(row(data.colours[name], name, data.categories[name][i]));
    if (data.reserved[i]) table.append(row(null, "reserved", data.reserved[i]));
    tip.replaceChildren(title, table);
    tip.hidden = false;
    const frame = svg.getBoundingClientRect(), left = event.clientX - frame.left;
    const flip = left > frame.width / 2;
    tip.style.left = flip ? "auto" : `${left + 14}px`;
    tip.style.right = flip ? `${frame.width - left + 14}px` : "auto";
  };
  const hide = () => {
    line.setAttribute("visibility", "hidden");
    tip.hidden = true;
  };
  const look = (x, width) => {
    svg.setAttribute("viewBox", `${x} 0 ${width} ${whole[1]}`);
    svg.setAttribute("preserveAspectRatio", width < whole[0] ? "none" : "xMidYMid meet");
  };
  svg.style.height = `${svg.getBoundingClientRect().height}px`;
  svg.addEventListener("pointermove", show);
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("pointerdown", (event) => {
    from = place(event);
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointerup", (event) => {
    const to = place(event), low = Math.min(from, to), wide = Math.abs(to - from);
    from = null;
    chosen.setAttribute("visibility", "hidden");
    if (wide > 4) look(low, wide);
  });
  svg.addEventListener("dblclick", () => look(0, whole[0]));
})();
