"use strict";
// The board: rows from the page's JSON, a state in the URL's hash, everything shown as text.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const rows = data.rows.map((values) =>
    Object.fromEntries(data.columns.map((name, k) => [name, values[k]])));
  const $ = (id) => document.getElementById(id);
  const DEFAULTS = { dataset: data.first, setting: "", protocol: "", backbone: "", category: "",
    shares: "", source: "", search: "", ablations: "", sort: "average", order: "descending" };
  const SELECTS = ["setting", "protocol", "backbone", "category", "shares"];
  const NONE = "weights only", SOME = "more than weights", UNKNOWN = "not stated";
  const narrow = matchMedia("(max-width: 720px)");
  let state = { ...DEFAULTS };

  const element = (tag, text, className) => {
    const node = document.createElement(tag);
    if (text !== undefined && text !== null) node.textContent = text;
    if (className) node.className = className;
    return node;
  };
  const distinct = (values) => [...new Set(values)].sort((a, b) => a.localeCompare(b));
  const kinds = (row) => row.shares === null ? [UNKNOWN]
    : row.shares.length ? [SOME, ...row.shares] : [NONE];

  // What the rows are compared by, one per column.
  const mean = (cell) => (cell ? cell[0] : null);
  const average = { key: "average", name: "Average", number: true, value: (r) => mean(r.average), cell: (r) => r.average };
  const columns = () => {
    const traffic = rows.some((r) => r.traffic !== null && fits(r));
    const domains = state.dataset === "all" ? [] : (data.domains[state.dataset] || []);
    return [
      { key: "label", name: "Method", value: (r) => (r.label + " " + r.variant).toLowerCase(), head: true },
      ...(state.dataset === "all" ? [{ key: "dataset", name: "Dataset", value: (r) => r.dataset }] : []),
      { key: "setting", name: "Setting", value: (r) => r.setting, side: true },
      { key: "backbone", name: "Backbone", value: (r) => r.backbone, side: true },
      { key: "shares", name: "Shares", value: (r) => (r.shares === null ? "~" : r.shares.join(" ")), side: true },
      ...(narrow.matches ? [average] : []),
      ...domains.map((name) => ({ key: "@" + name, name, number: true, value: (r) => mean(r.cells[name]), cell: (r) => r.cells[name] })),
      ...(narrow.matches ? [] : [average]),
      { key: "seeds", name: "Seeds", number: true, value: (r) => r.seeds },
      ...(traffic ? [{ key: "traffic", name: "MB/round", number: true, value: (r) => r.traffic, title: "measured traffic of a round, both directions, all clients" }] : []),
      { key: "origin", name: "Source", value: (r) => r.source + r.origin },
    ];
  };

  const fits = (row) => {
    if (state.dataset !== "all" && row.dataset !== state.dataset) return false;
    if (!state.ablations && row.variant) return false;
    if (state.source === "published" && row.source !== "published") return false;
    if (state.source === "ours" && row.source === "published") return false;
    for (const key of ["setting", "protocol", "backbone", "category"]) {
      if (state[key] && row[key] !== state[key]) return false;
    }
    if (state.shares && !kinds(row).includes(state.shares)) return false;
    return state.search.toLowerCase().split(/\s+/).every((word) => row.text.includes(word));
  };

  const compare = (column, sign) => (a, b) => {
    const x = column.value(a), y = column.value(b);
    if (x === null || x === undefined || y === null || y === undefined) {
      return (x === null || x === undefined) - (y === null || y === undefined);
    }
    return sign * (column.number ? x - y : x.localeCompare(y)) || a.place - b.place;
  };

  const numberCell = (cell, node, row, key) => {
    if (!cell) { node.append(element("span", "–", "soft")); return; }
    const value = element("span", cell[0].toFixed(1));
    if (row.best.includes(key)) { value.className = "best"; node.title = "best of its comparison"; }
    node.append(value);
    if (cell[1] !== null) node.append(element("small", " ±" + cell[1].toFixed(1), "soft"));
    if (cell[2] !== null && row.seeds && cell[2] < row.seeds) {
      node.append(element("small", ` (${cell[2]}/${row.seeds})`, "soft"));
    }
  };

  const drawCell = (row, column, range) => {
    const node = element(column.head ? "th" : "td", undefined,
      [column.number && "n", column.side && "side"].filter(Boolean).join(" "));
    if (column.head) {
      node.scope = "row";
      const link = row.page === null ? element("span", row.label) : element("a", row.label);
      if (row.page !== null) link.href = data.pages[row.page];
      node.append(link);
      node.append(element("small", row.variant || row.category));
      node.append(element("small", [row.setting, row.backbone].join(" · "), "phone"));
    } else if (column.cell) {
      numberCell(column.cell(row), node, row, column.key === "average" ? "" : column.name);
      if (column.key === "average" && row.average) {
        node.classList.add("avg");
        const part = (row.average[0] - range[0]) / Math.max(1e-9, range[1] - range[0]);
        node.style.setProperty("--w", (8 + 92 * part).toFixed(0) + "%");
      }
    } else if (column.key === "shares") {
      if (row.shares === null) node.append(element("span", UNKNOWN, "soft"));
      else if (!row.shares.length) node.append(element("span", NONE, "soft"));
      else for (const kind of row.shares) node.append(element("span", kind, "tag warn"));
    } else if (column.key === "origin") {
      node.append(element("span", row.origin, "dot " + row.source));
      node.classList.add("wide");
    } else if (column.key === "setting") {
      node.append(element("span", row.setting));
      if (row.detail) node.append(element("small", row.detail, "under"));
      node.classList.add("wide");
    } else if (column.key === "traffic") {
      node.textContent = row.traffic === null ? "–" : row.traffic.toPrecision(3);
    } else if (column.key === "seeds") {
      node.textContent = row.seeds === null ? "–" : row.seeds;
    } else {
      node.textContent = column.value(row);
    }
    return node;
  };

  const drawHead = (shown) => {
    const line = element("tr");
    for (const column of shown) {
      const cell = element("th", undefined, [column.number && "n", column.side && "side"].filter(Boolean).join(" "));
      cell.scope = "col";
      if (state.sort === column.key) cell.setAttribute("aria-sort", state.order);
      const button = element("button", column.name);
      button.type = "button";
      button.dataset.sort = column.key;
      if (column.title) button.title = column.title;
      cell.append(button);
      line.append(cell);
    }
    $("head").replaceChildren(line);
  };

  const draw = () => {
    const shown = columns();
    const column = shown.find((c) => c.key === state.sort) || shown.find((c) => c.key === "average");
    const found = rows.filter(fits).sort(compare(column, state.order === "ascending" ? 1 : -1));
    const values = found.map((r) => mean(r.average)).filter((v) => v !== null);
    const range = [Math.min(...values), Math.max(...values)];
    const focused = document.activeElement && document.activeElement.dataset.sort;
    drawHead(shown);
    if (focused) {
      const button = [...document.querySelectorAll("#head button")].find((b) => b.dataset.sort === focused);
      if (button) button.focus();
    }
    const body = document.createDocumentFragment();
    for (const row of found) {
      const line = element("tr");
      for (const c of shown) line.append(drawCell(row, c, range));
      body.append(line);
    }
    $("body").replaceChildren(body);
    $("empty").hidden = found.length > 0;
    const total = rows.length;
    $("status").textContent = `${found.length} of ${total} rows` +
      (state.dataset === "all" ? "; choose a dataset to see its domains" : "");
  };

  const write = () => {
    const pairs = Object.entries(state).filter(([key, value]) => value !== DEFAULTS[key]);
    return "#" + new URLSearchParams(pairs).toString();
  };
  const read = () => {
    const given = new URLSearchParams(location.hash.slice(1));
    state = { ...DEFAULTS };
    for (const key of Object.keys(DEFAULTS)) if (given.has(key)) state[key] = given.get(key);
    if (state.order !== "ascending") state.order = "descending";
  };
  const showControls = () => {
    for (const input of document.querySelectorAll("input[type=radio]")) input.checked = state[input.name] === input.value;
    const tab = document.querySelector("input[name=dataset]:checked + span");
    if (tab && narrow.matches) {
      const strip = tab.closest(".tabs");
      strip.scrollLeft = tab.parentElement.offsetLeft - strip.offsetLeft - 40;
    }
    for (const key of SELECTS) {
      const select = $(key);
      if (state[key] && ![...select.options].some((o) => o.value === state[key])) select.add(new Option(state[key], state[key]));
      select.value = state[key];
    }
    $("search").value = state.search;
    $("ablations").checked = Boolean(state.ablations);
    if (!narrow.matches || SELECTS.some((key) => state[key])) $("more").open = true;
  };
  const change = (changes, typing) => {
    state = { ...state, ...changes };
    if (typing) history.replaceState(null, "", write()); else history.pushState(null, "", write());
    draw();
  };
  const restore = () => { read(); showControls(); draw(); };

  const fill = (id, values) => { for (const value of values) $(id).add(new Option(value, value)); };
  const start = () => {
    rows.forEach((row, place) => {
      row.place = place;
      row.text = [row.label, row.variant, row.dataset, row.setting, row.backbone, row.category,
        row.protocol, row.origin, row.source, row.parts, ...kinds(row)].join(" ").toLowerCase();
    });
    for (const key of SELECTS.slice(0, 4)) fill(key, distinct(rows.map((r) => r[key])));
    const special = [NONE, SOME, UNKNOWN];
    const all = distinct(rows.flatMap(kinds));
    fill("shares", [...special.filter((k) => all.includes(k)), ...all.filter((k) => !special.includes(k))]);
    for (const key of SELECTS) $(key).addEventListener("change", (e) => change({ [key]: e.target.value }));
    for (const input of document.querySelectorAll("input[type=radio]")) {
      input.addEventListener("change", () => change({ [input.name]: input.value }));
    }
    $("search").addEventListener("input", (e) => change({ search: e.target.value }, true));
    $("ablations").addEventListener("change", (e) => change({ ablations: e.target.checked ? "shown" : "" }));
    $("reset").addEventListener("click", () => { change({ ...DEFAULTS, dataset: state.dataset }); showControls(); });
    $("head").addEventListener("click", (e) => {
      const key = e.target.dataset.sort;
      if (!key) return;
      const usual = columns().find((c) => c.key === key).number ? "descending" : "ascending";
      const other = usual === "ascending" ? "descending" : "ascending";
      change({ sort: key, order: state.sort === key && state.order === usual ? other : usual });
    });
    narrow.addEventListener("change", restore);
    addEventListener("popstate", restore);
    addEventListener("hashchange", restore);
    addEventListener("keydown", (e) => {
      if (e.key === "/" && !/INPUT|SELECT|TEXTAREA/.test(document.activeElement.tagName)) {
        e.preventDefault();
        $("search").focus();
      }
    });
    restore();
    document.documentElement.dataset.ready = "yes";
  };
  start();
})();
