"use strict";
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const readout = document.getElementById("readout");
  const hidden = new Set();

  // The horizontal axis: one choice for all curves; a chart without it is shown against rounds.
  const charts = all("figure[data-x]");
  const available = new Set(charts.map((chart) => `${chart.dataset.column} ${chart.dataset.x}`));
  function showAxis(x) {
    for (const chart of charts) {
      const has = available.has(`${chart.dataset.column} ${x}`);
      chart.hidden = chart.dataset.x !== (has ? x : "rounds");
    }
  }
  for (const radio of all("input[name=x]")) {
    radio.addEventListener("change", () => showAxis(radio.value));
    if (radio.checked) showAxis(radio.value);
  }

  // Methods that are hidden or emphasised.
  function showMethods() {
    for (const part of all("svg [data-s]")) part.classList.toggle("off", hidden.has(part.dataset.s));
    for (const button of all(".toggle")) {
      button.setAttribute("aria-pressed", String(!hidden.has(button.dataset.s)));
    }
  }
  function emphasise(method) {
    for (const part of all("svg [data-s]")) {
      part.classList.toggle("faint", method !== null && part.dataset.s !== method);
    }
  }
  for (const button of all(".toggle")) {
    const method = button.dataset.s;
    button.addEventListener("click", () => {
      if (!hidden.delete(method)) hidden.add(method);
      emphasise(null);
      showMethods();
    });
    button.addEventListener("pointerenter", () => hidden.has(method) || emphasise(method));
    button.addEventListener("pointerleave", () => emphasise(null));
    button.addEventListener("focus", () => hidden.has(method) || emphasise(method));
    button.addEventListener("blur", () => emphasise(null));
  }
  for (const button of all("button.all")) {
    button.addEventListener("click", () => { hidden.clear(); showMethods(); });
  }

  // Values, read back from the drawing: its points and the scales of its axes.
  const scale = (words) => {
    const [start, end, low, high, log] = words.split(" ").map(Number);
    const [a, b] = log ? [Math.log10(low), Math.log10(high)] : [low, high];
    return (place) => {
      const value = a + (b - a) * (place - start) / (end - start);
      return log ? 10 ** value : value;
    };
  };
  const points = (path) => {
    const numbers = path.getAttribute("d").match(/-?[\d.]+/g).map(Number);
    return Array.from({ length: numbers.length / 2 }, (_, k) => [numbers[2 * k], numbers[2 * k + 1]]);
  };
  // The value of a line, or of an edge of its band, at a place between its points; after its end, its last one.
  function between(line, place) {
    const last = line.length - 1;
    if (place >= line[last][0]) return line[last][1];
    const k = line.findIndex((one) => one[0] > place);
    const [[a, from], [b, to]] = [line[k - 1], line[k]];
    return from + (to - from) * (place - a) / (b - a);
  }
  const known = new WeakMap();
  function read(panel) {
    if (!known.has(panel)) {
      const series = all("g.line", panel).map((group) => {
        const line = points(group.querySelector("path"));
        const band = all(`g.band[data-s="${group.dataset.s}"] > path`, panel).map(points);
        return {
          line,
          // Its upper and its lower edge.
          band: band.flatMap((edge) => [edge.slice(0, line.length), edge.slice(-line.length).reverse()]),
          method: group.dataset.s,
          name: group.dataset.name,
        };
      });
      known.set(panel, { series, x: scale(panel.dataset.x), y: scale(panel.dataset.y), at: null });
    }
    return known.get(panel);
  }
  const shown = (value, whole) => {
    if (whole) return String(Math.round(value));
    const size = Math.abs(value);
    return size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(3) : String(Number(value.toPrecision(4)));
  };
  function nearest(line, place) {
    let low = 0, high = line.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (line[middle][0] < place) low = middle; else high = middle;
    }
    return place - line[low][0] <= line[high][0] - place ? low : high;
  }
  function visible(panel) {
    return read(panel).series.filter((one) => !hidden.has(one.method));
  }
  function cell(row, words, swatch) {
    const made = row.insertCell();
    if (swatch) made.append(swatch.cloneNode(true));
    made.append(words);
  }
  function point(panel, place, beside) {
    const found = read(panel), series = visible(panel);
    if (!series.length) return leave(panel);
    const closest = series.map((one) => one.line[nearest(one.line, place)][0]);
    const at = closest.reduce((a, b) => (Math.abs(b - place) < Math.abs(a - place) ? b : a));
    found.at = at;
    let cross = panel.querySelector(".cross");
    if (!cross) {
      cross = document.createElementNS("http://www.w3.org/2000/svg", "path");
      cross.setAttribute("class", "cross");
      panel.append(cross);
    }
    const ends = panel.dataset.y.split(" ");
    cross.setAttribute("d", `M${at} ${ends[0]}V${ends[1]}`);
    const whole = panel.closest("figure").dataset.x === "rounds";
    const rows = series.map((one) => {
      if (at < one.line[0][0] - 1) return { one, value: -Infinity };
      const ends = one.band.map((edge) => found.y(between(edge, at)));
      const half = ends.length ? Math.abs(ends[0] - ends[1]) / 2 : 0;
      return { one, value: found.y(between(one.line, at)), half, over: at > one.line.at(-1)[0] + 1 };
    }).sort((a, b) => b.value - a.value);
    const title = document.createElement("div");
    title.textContent = `${panel.dataset.label}: ${shown(found.x(at), whole)}`;
    const table = document.createElement("table");
    for (const { one, value, half, over } of rows) {
      const row = table.insertRow();
      const button = document.querySelector(`.toggle[data-s="${one.method}"] .swatch`);
      cell(row, one.name, button);
      const spread = half ? ` ± ${shown(Number(half.toPrecision(2)))}` : "";
      cell(row, value === -Infinity ? "–" : shown(value) + spread + (over ? " at its end" : ""));
    }
    readout.replaceChildren(title, table);
    readout.hidden = false;
    const box = panel.getBoundingClientRect();
    const x = beside ? beside.clientX : box.left + at / panel.viewBox.baseVal.width * box.width;
    const y = beside ? beside.clientY : box.top + box.height / 3;
    placeReadout(x, y);
  }
  function placeReadout(x, y) {
    const width = readout.offsetWidth, height = readout.offsetHeight;
    const left = x + 16 + width > innerWidth ? x - 16 - width : x + 16;
    readout.style.left = `${Math.max(4, left)}px`;
    readout.style.top = `${Math.max(4, Math.min(y + 12, innerHeight - height - 4))}px`;
  }
  function leave(panel) {
    readout.hidden = true;
    panel.querySelector(".cross")?.remove();
  }
  for (const panel of all("svg.panel")) {
    panel.addEventListener("pointermove", (event) => {
      const box = panel.getBoundingClientRect();
      point(panel, (event.clientX - box.left) / box.width * panel.viewBox.baseVal.width, event);
    });
    panel.addEventListener("pointerleave", () => leave(panel));
    panel.addEventListener("blur", () => leave(panel));
    panel.addEventListener("keydown", (event) => {
      const series = visible(panel);
      if (!series.length) return;
      if (event.key === "Escape") return leave(panel);
      const places = [...new Set(series.flatMap((one) => one.line.map((pair) => pair[0])))].sort((a, b) => a - b);
      const at = read(panel).at;
      const now = at === null ? -1 : places.findIndex((place) => place >= at);
      const by = event.shiftKey ? 10 : 1;
      const next = { ArrowRight: now + by, ArrowLeft: now - by, Home: 0, End: places.length - 1 }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      point(panel, places[Math.max(0, Math.min(places.length - 1, next))], null);
    });
  }

  // The vertical axis and the smoothing that a reader chooses: what is drawn moves up or down.
  const svg = (name, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };
  function ticks(low, high, log) {
    if (log && high > 30 * low) {
      const first = Math.ceil(Math.log10(low)), count = Math.floor(Math.log10(high)) - first + 1;
      const step = Math.ceil(count / 6);
      return Array.from({ length: Math.ceil(count / step) }, (_, k) => 10 ** (first + k * step));
    }
    const rough = (high - low) / 5, power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((one) => one * power >= rough);
    return Array.from({ length: Math.floor(high / step) - Math.ceil(low / step) + 1 }, (_, k) => (Math.ceil(low / step) + k) * step);
  }
  const smoothed = (line, reach) => line.map(([x], k) => {
    const near = line.slice(Math.max(0, k - reach), k + reach + 1);
    return [x, near.reduce((sum, one) => sum + one[1], 0) / near.length];
  });
  const drawn = (line) => `M${line.map(([x, y]) => `${x.toFixed(2)} ${y.toFixed(2)}`).join("L")}`;
  const originals = new WeakMap();
  function redraw(panel, mode, reach) {
    if (!originals.has(panel)) originals.set(panel, { html: panel.innerHTML, y: panel.dataset.y });
    const { html, y } = originals.get(panel);
    panel.innerHTML = html;  // as the report has drawn it
    panel.dataset.y = y;
    known.delete(panel);
    const [bottom, top, low, high, wasLog] = y.split(" ").map(Number), value = scale(y);
    const series = read(panel).series;
    const inValues = (line, by) => smoothed(line.map(([x, at]) => [x, value(at)]), by);
    const lines = series.map((one) => inValues(one.line, reach));
    const least = Math.min(...lines.flat().map((one) => one[1])), most = Math.max(...lines.flat().map((one) => one[1]));
    const log = mode === "usual" || (mode === "log" && least <= 0) ? Boolean(wasLog) : mode === "log";
    if (!series.length || (log === Boolean(wasLog) && !reach)) return;
    let ends = [low, high];
    if (log !== Boolean(wasLog)) {
      const extra = log ? (most / least) ** 0.04 || 2 : (most - least) * 0.04 || 1;
      ends = log ? [least / extra, most * extra] : [least - extra, most + extra];
    }
    const [a, b] = log ? ends.map(Math.log10) : ends;
    const place = (v) => {
      const at = log ? Math.log10(Math.max(v, 1e-300)) : v;
      return Math.max(-999, Math.min(999, bottom + (top - bottom) * (at - a) / (b - a)));
    };
    const move = (line) => line.map(([x, v]) => [x, place(v)]);
    series.forEach((one, k) => {
      const mine = (part) => all(`g.${part}[data-s="${one.method}"]`, panel), line = move(lines[k]);
      mine("line")[0].querySelector("path").setAttribute("d", drawn(line));
      for (const mark of all("use", mine("line")[0])) mark.setAttribute("y", between(line, Number(mark.getAttribute("x"))).toFixed(2));
      const edges = one.band.map((edge) => move(inValues(edge, reach)));
      if (edges.length) mine("band")[0].querySelector("path").setAttribute("d", `${drawn([...edges[0], ...edges[1].reverse()])}Z`);
      for (const path of mine("rest").flatMap((group) => all("path", group))) path.setAttribute("d", drawn(points(path).map(([x]) => [x, line.at(-1)[1]])));
      for (const path of mine("guide").flatMap((group) => all("path", group))) path.setAttribute("d", drawn(move(inValues(points(path), 0))));
    });
    for (const lead of all("g.lead", panel)) lead.remove();
    let floor = -Infinity;
    const named = series.map((one, k) => ({ text: panel.querySelector(`g.name[data-s="${one.method}"]`), at: place(lines[k].at(-1)[1]) }));
    for (const { text, at } of named.filter((one) => one.text).sort((p, q) => p.at - q.at)) {
      const box = text.getBBox(), middle = Math.max(at, floor + box.height / 2);
      text.setAttribute("transform", `translate(0 ${middle - box.y - box.height / 2})`);
      floor = middle + box.height / 2;
    }
    const axis = panel.querySelector("g.y-axis"), [left, right] = panel.dataset.x.split(" ").map(Number);
    axis.replaceChildren();
    for (const tick of ticks(...ends, log)) {
      const at = place(tick), number = svg("text", { x: left - 7, y: at + 4, style: "font-size: 10.5px; text-anchor: end; fill: var(--x595959,#595959)" });
      number.textContent = shown(Number(tick.toPrecision(6)));
      axis.append(svg("path", { d: `M${left - 3.5} ${at}H${right}`, style: "fill: none; stroke: var(--xe5e5e5,#e5e5e5); stroke-width: 0.8" }), number);
    }
    panel.dataset.y = `${bottom} ${top} ${ends[0]} ${ends[1]} ${Number(log)}`;
    known.delete(panel);
  }
  const smoothing = document.getElementById("smoothing");
  function redrawAll() {
    const mode = document.querySelector("input[name=y]:checked").value;
    document.getElementById("reach").textContent = smoothing.value === "0" ? "off" : `means of ${2 * smoothing.value + 1} points`;
    for (const panel of all("figure[data-x] svg.panel")) redraw(panel, mode, Number(smoothing.value));
    showMethods();
  }
  for (const input of [...all("input[name=y]"), ...(smoothing ? [smoothing] : [])]) input.addEventListener("input", redrawAll);

  // Tables: a click on a head sorts by its column, a second one the other way round.
  for (const table of all(".scroll table:not(.matrix)")) {
    const heads = all("thead th", table), body = table.tBodies[0];
    if (body.rows.length < 2) continue;
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const down = head.ariaSort === "none" || !head.ariaSort ? head.classList.contains("n") : head.ariaSort === "ascending";
        const text = (row) => row.cells[column].textContent.trim();
        const number = (row) => parseFloat(text(row).replace(/^[^\d+-.]+/, ""));
        const numeric = [...body.rows].every((row) => text(row) === "–" || !Number.isNaN(number(row)));
        const compare = numeric
          ? (p, q) => (Number.isNaN(number(p)) - Number.isNaN(number(q))) || (number(p) - number(q)) * (down ? -1 : 1)
          : (p, q) => text(p).localeCompare(text(q), undefined, { numeric: true }) * (down ? -1 : 1);
        for (const other of heads) other.ariaSort = null;
        head.ariaSort = down ? "descending" : "ascending";
        body.append(...[...body.rows].sort(compare));
      });
    });
  }

  // Heat maps.
  for (const image of all("img[data-values]")) {
    const values = JSON.parse(image.dataset.values), clients = JSON.parse(image.dataset.clients);
    let column = -1;
    const say = (k, row, x, y) => {
      const weights = values.map((of, index) => `${index === row ? "▸ " : ""}component ${index + 1}: ${(of[k] / 100).toFixed(2)}`);
      const lines = [`client ${clients[k]}`, ...weights].map((words) => {
        const line = document.createElement("div");
        line.textContent = words;
        return line;
      });
      readout.replaceChildren(...lines);
      readout.hidden = false;
      placeReadout(x, y);
    };
    image.addEventListener("pointermove", (event) => {
      const box = image.getBoundingClientRect();
      const k = Math.max(0, Math.min(clients.length - 1, Math.floor((event.clientX - box.left) / box.width * clients.length)));
      const row = Math.max(0, Math.min(values.length - 1, Math.floor((event.clientY - box.top) / box.height * values.length)));
      column = k;
      say(k, row, event.clientX, event.clientY);
    });
    image.addEventListener("pointerleave", () => { readout.hidden = true; });
    image.addEventListener("blur", () => { readout.hidden = true; });
    image.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (event.key === "Escape") readout.hidden = true;
      if (!by) return;
      event.preventDefault();
      column = Math.max(0, Math.min(clients.length - 1, column + by));
      const box = image.getBoundingClientRect();
      say(column, -1, box.left + (column + 0.5) / clients.length * box.width, box.top);
    });
  }

  // Commands.
  for (const button of all("button.copy")) {
    button.addEventListener("click", async () => {
      const code = button.parentElement.querySelector("code");
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
      } catch {  // a page from a file may not write to the clipboard: select the text instead
        getSelection().selectAllChildren(code);
        button.textContent = "Selected";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }
})();
