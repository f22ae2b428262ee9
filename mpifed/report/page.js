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
  const known = new WeakMap();
  function read(panel) {
    if (!known.has(panel)) {
      const series = all("g.line", panel).map((group) => {
        const line = points(group.querySelector("path"));
        const band = all(`g.band[data-s="${group.dataset.s}"] > path`, panel).map(points);
        return {
          line,
          band: band.flatMap((edge) => line.map((_, k) => [edge[k][1], edge.at(-1 - k)[1]])),  // its ends at each point
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
      const index = nearest(one.line, at), [x, y] = one.line[index];
      const value = found.y(y);
      const [low, high] = one.band[index] ?? [0, 0];
      const half = Math.abs(found.y(high) - found.y(low)) / 2;
      return { one, value, half, far: Math.abs(x - at) > 6 };
    }).sort((a, b) => b.value - a.value);
    const title = document.createElement("div");
    title.textContent = `${panel.dataset.label}: ${shown(found.x(at), whole)}`;
    const table = document.createElement("table");
    for (const { one, value, half, far } of rows) {
      const row = table.insertRow();
      const button = document.querySelector(`.toggle[data-s="${one.method}"] .swatch`);
      cell(row, one.name, button);
      cell(row, far ? "–" : shown(value) + (half ? ` (s.d. ${shown(Number(half.toPrecision(2)))})` : ""));
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
