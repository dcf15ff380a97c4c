"use strict";
// Every name and payload enters the page as text (textContent), never as markup.

const REFRESH_MS = 2000;
const EVENTS_EVERY = 5; // refreshes: the changes of late are many
const ROWS = 50;
const HOUR_S = 3600;
const COLUMNS = {
  keys: [["key", "key", "open"], ["samples/s", "per_second", "number"], ["samples", "samples", "number"],
    ["value", "value", "long"], ["newest", "newest"], ["streams", "streams", "number"],
    ["encoding", "encoding"], ["trouble", "error", "bad"]],
  sources: [["source", "source", "open"], ["samples/s", "per_second", "number"],
    ["samples", "samples", "number"], ["missing", "missing", "alarm"], ["given up", "given_up", "alarm"],
    ["missing numbers", "missing_runs"], ["given up numbers", "given_up_runs"],
    ["last", "last", "number"], ["newest", "newest"], ["epoch", "epoch", "number"]],
  samples: [["time", "time", "open"], ["sn", "sn", "number"], ["kind", "kind"], ["value", "value", "long"],
    ["bytes", "bytes", "number"], ["encoding", "encoding"], ["source", "source"], ["epoch", "epoch", "number"]],
  peers: [["peer", "peer"], ["in reach", "live"], ["equal", "equal"], ["lag s", "lag_seconds", "number"],
    ["streams", "streams", "number"], ["streams there", "streams_there", "number"],
    ["samples", "samples", "number"], ["samples there", "samples_there", "number"],
    ["missing here", "missing", "alarm"], ["pulled", "pulled", "number"],
    ["conflicts", "conflicts", "alarm"], ["refused", "refused", "bad"]],
  losses: [["source", "source"], ["epoch", "epoch", "number"], ["first", "first", "number"],
    ["last", "last", "number"], ["samples", "samples", "number"]],
};
const PAGED = new Set(["keys", "sources", "samples"]);

const state = { what: "keys", storage: "", key: "", source: "", keyExpr: "", pages: [""], next: null,
  sort: "", down: true, paused: false, rows: null, before: new Map(), events: null, refreshes: 0, asked: 0 };

const $ = (id) => document.getElementById(id);

// What a screen shows as nothing, or lets run the other way, is written out.
function visible(text) {
  return String(text).replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g,
    (found) => `\\u${found.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined && text !== null) made.textContent = visible(text);
  if (className) made.className = className;
  return made;
}

async function ask(path, parameters) {
  const query = new URLSearchParams(parameters).toString();
  const reply = await fetch(query ? `${path}?${query}` : path, { cache: "no-store" });
  const value = await reply.json();
  if (!reply.ok) throw new Error(value.error || `the service answered ${reply.status}`);
  return value;
}

function trouble(text) {
  const shown = $("trouble");
  shown.hidden = !text;
  if (shown.textContent !== text) shown.textContent = text;
}

function bytes(count) {
  if (count < 0) return "unknown";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (count >= 1024 && at < units.length - 1) { count /= 1024; at += 1; }
  return `${at ? count.toFixed(1) : count} ${units[at]}`;
}

function counted(count, one, many = `${one}s`) {
  return `${count} ${count === 1 ? one : many}`;
}

function duration(seconds) {
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}

// ---- storages

function perSecond(name, figure, value, now) {
  const key = `${name}\u0000${figure}`;
  const before = state.before.get(key);
  state.before.set(key, { value, now });
  if (!before || now <= before.now) return "…";
  return (Math.max(0, value - before.value) / ((now - before.now) / 1000)).toFixed(1);
}

function fact(list, title, value, isBad) {
  list.append(element("dt", title), element("dd", value, isBad ? "bad" : ""));
}

function card(status, report, now) {
  const made = element("article", null, "card");
  const isUp = status.storage_up && status.takes_samples;
  made.append(element("h3", `${isUp ? "●" : "▲"} ${status.name}: ${isUp ? "up" : "in trouble"}`));
  made.append(element("p", `${status.key_exprs.join(", ")} on ${status.backend}, acknowledged at level ${status.level}`, "kind"));
  const list = element("dl");
  fact(list, "stored/s", perSecond(status.name, "appended", status.appended, now));
  fact(list, "stored, received", `${status.appended}, ${status.received}`);
  fact(list, "gaps, missed", `${status.gaps_open}, ${status.missed}`, status.gaps_open + status.missed > 0);
  fact(list, "refused", status.refused, status.refused > 0);
  fact(list, "ignored", status.ignored, status.ignored > 0);
  fact(list, "without a number", status.unnumbered);
  fact(list, "streams, sources", `${status.streams}, ${status.sources}`);
  const journal = element("dd", `${bytes(status.journal_bytes)}, ${status.journal_samples} samples waiting `);
  if (status.journal_bytes_max > 0) {
    const meter = element("meter");
    meter.max = status.journal_bytes_max;
    meter.high = status.journal_bytes_max * 0.8;
    meter.value = status.journal_bytes;
    meter.setAttribute("aria-label", `journal, of at most ${bytes(status.journal_bytes_max)}`);
    journal.append(meter, ` of ${bytes(status.journal_bytes_max)}`);
  }
  list.append(element("dt", "journal"), journal);
  fact(list, "disk free", bytes(report.disk_free_bytes));
  const lags = status.alignment.lags;
  fact(list, "peers, lag", lags.length ? `${lags.length}, ${Math.max(...lags.map((lag) => lag[1])).toFixed(1)} s` : "no peers");
  if (status.dead_letters) fact(list, "dead letters", status.dead_letters, true);
  made.append(list);
  for (const text of [status.last_error, ...status.findings]) {
    if (text) made.append(element("p", text, "trouble"));
  }
  return made;
}

function showStorages(report) {
  const now = performance.now();
  $("service").textContent = `version ${report.version}, domain ${report.domain}, zid ${report.zid}, ` +
    `up ${duration(report.uptime_seconds)}, state in ${report.state_dir}`;
  document.title = report.ready ? "durable-cache" : "▲ durable-cache";
  $("storages").replaceChildren(...report.storages.map((status) => card(status, report, now)));
  const names = report.storages.map((status) => status.name);
  const chosen = $("storage");
  if ([...chosen.options].map((option) => option.value).join("\n") !== names.join("\n")) {
    chosen.replaceChildren(...names.map((name) => new Option(name, name)));
    if (!names.includes(state.storage)) state.storage = names[0] || "";
    chosen.value = state.storage;
  }
}

// ---- timeline

function svg(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  return made;
}

// A span that is awaited fills the lower half, one without a backend the whole: shape before colour.
function strip(caption, spans, ticks, now) {
  const figure = element("figure");
  const said = spans.length || ticks.length
    ? `${counted(spans.length, "time")} something was awaited or the backend away, ${counted(ticks.length, "loss", "losses")}`
    : "nothing awaited, nothing lost";
  figure.append(element("figcaption", `${caption}: ${said}`));
  const drawn = svg("svg", { viewBox: `0 0 ${HOUR_S} 18`, preserveAspectRatio: "none", role: "img", "aria-label": visible(`${caption}: ${said}`) });
  const left = now - HOUR_S;
  for (const [from, to, kind] of spans) {
    const x = Math.max(0, from - left);
    const half = kind === "waits";
    drawn.append(svg("rect", { x, width: Math.max(6, to - left - x), y: half ? 9 : 0, height: half ? 9 : 18, class: `bar-${kind}` }));
  }
  for (const at of ticks) drawn.append(svg("rect", { x: at - left, width: 8, y: 0, height: 18, class: "bar-lost" }));
  figure.append(drawn);
  return figure;
}

function storageStrip(name, events, now) {
  const own = events.filter((event) => event.storage === name);
  const spans = [];
  const ticks = [];
  own.forEach((event, at) => {
    const to = at + 1 < own.length ? own[at + 1].unix_seconds : now;
    const before = own[at - 1];
    const lost = before && (event.missed > before.missed || event.refused > before.refused);
    if (lost && event.unix_seconds > now - HOUR_S) ticks.push(event.unix_seconds);
    if (to < now - HOUR_S || (event.up && !event.gaps_open)) return;
    spans.push([event.unix_seconds, to, event.up ? "waits" : "away"]);
  });
  return strip(name, spans, ticks, now);
}

function sourceStrips(report, now) {
  const found = new Map();
  const of = (storage, source) => {
    const key = `${storage}\u0000${source}`;
    if (!found.has(key)) found.set(key, { storage, source, spans: [], ticks: [], from: null, at: 0 });
    return found.get(key);
  };
  for (const event of report.source_events) {
    const entry = of(event.storage, event.source);
    entry.at = event.unix_seconds;
    if (event.awaited) entry.from = entry.from ?? event.unix_seconds;
    else if (entry.from !== null) { entry.spans.push([entry.from, event.unix_seconds, "waits"]); entry.from = null; }
  }
  for (const status of report.storages) {
    for (const miss of status.misses) {
      const entry = of(status.name, miss.source);
      entry.at = Math.max(entry.at, miss.unix_seconds);
      entry.ticks.push(miss.unix_seconds);
    }
  }
  const entries = [...found.values()].sort((one, other) => other.at - one.at).slice(0, 12);
  return entries.map((entry) => {
    if (entry.from !== null) entry.spans.push([entry.from, now, "waits"]);
    const recent = (at) => at > now - HOUR_S;
    return strip(`${entry.storage}, source ${entry.source}`, entry.spans.filter((span) => recent(span[1])), entry.ticks.filter(recent), now);
  });
}

function showTimeline(report) {
  const now = report.unix_seconds;
  const axis = element("p", null, "axis");
  axis.append(element("span", "an hour ago"), element("span", "now"));
  $("timeline").replaceChildren(
    ...report.storages.map((status) => storageStrip(status.name, report.events, now)),
    ...sourceStrips(report, now), axis);
}

// ---- inside a storage

function parameters() {
  const asked = { storage: state.storage, limit: ROWS, after: state.pages[state.pages.length - 1] };
  if (state.what === "keys") { asked.key_expr = state.keyExpr; asked.source = state.source; }
  if (state.what === "samples") { asked.key = state.key; asked.source = state.source; }
  if (state.what === "sources") asked.key = state.key;
  return Object.fromEntries(Object.entries(asked).filter(([, value]) => value !== ""));
}

function text(row, name) {
  const value = row[name];
  if (value === null || value === undefined) return "";
  if (typeof value === "boolean") return value ? "yes" : "no";
  return name === "samples" && row.at_least ? `${value}+` : String(value);
}

function sorted(rows) {
  if (!state.sort) return rows;
  const isEmpty = (row) => row[state.sort] === null || row[state.sort] === undefined || row[state.sort] === "";
  const order = (one, other) => {
    if (isEmpty(one) || isEmpty(other)) return isEmpty(one) - isEmpty(other);
    const [left, right] = [one[state.sort], other[state.sort]];
    const way = typeof left === "number" && typeof right === "number" ? left - right : String(left).localeCompare(String(right));
    return state.down ? -way : way;
  };
  return [...rows].sort(order);
}

function heading(title, name, form) {
  const cell = element("th", null, form === "number" || form === "alarm" ? "number" : "");
  cell.scope = "col";
  const button = element("button", state.sort === name ? `${title} ${state.down ? "↓" : "↑"}` : title);
  button.type = "button";
  button.dataset.focus = `sort ${name}`;
  if (state.sort === name) cell.setAttribute("aria-sort", state.down ? "descending" : "ascending");
  button.addEventListener("click", () => {
    state.down = state.sort === name ? !state.down : true;
    state.sort = name;
    showRows();
  });
  cell.append(button);
  return cell;
}

function rowOf(row, columns) {
  const made = element("tr");
  for (const [, name, form] of columns) {
    const shown = text(row, name);
    if (form === "open") {
      const cell = element("td", null, "open");
      const button = element("button", shown, shown.length < 60 ? "short" : "");
      button.type = "button";
      button.dataset.focus = `open ${shown} ${text(row, "sn")} ${text(row, "epoch")}`;
      button.addEventListener("click", () => open(row));
      cell.append(button);
      made.append(cell);
    } else {
      const isAlarm = form === "alarm" && row[name] > 0;
      const className = form === "alarm" ? `number${isAlarm ? " bad" : ""}` : form || "";
      made.append(element("td", isAlarm ? `▲ ${shown}` : shown, className));
    }
  }
  return made;
}

function showRows() {
  const columns = COLUMNS[state.what];
  const focused = document.activeElement?.dataset?.focus;
  const holder = $("rows");
  if (!state.rows?.length) {
    const none = state.next ? "none of these keys is named; the next page goes on" : "nothing here";
    const reason = state.rows ? none : "asking …"; // no answer yet is not an empty one
    holder.replaceChildren(element("p", reason, "empty"));
  } else {
    const table = element("table");
    const head = element("tr");
    head.append(...columns.map((column) => heading(...column)));
    table.append(element("thead"), element("tbody"));
    table.tHead.append(head);
    table.tBodies[0].append(...sorted(state.rows).map((row) => rowOf(row, columns)));
    holder.replaceChildren(table);
  }
  if (focused) [...holder.querySelectorAll("[data-focus]")].find((one) => one.dataset.focus === focused)?.focus();
  for (const tab of document.querySelectorAll("[role=tab]")) {
    tab.setAttribute("aria-selected", String(tab.dataset.what === (state.what === "samples" ? "keys" : state.what)));
  }
  const parts = [`${state.what} of ${state.storage}`];
  if (state.key && state.what !== "keys") parts.push(state.key);
  if (state.source && state.what !== "sources") parts.push(`source ${state.source}`);
  if (state.keyExpr && state.what === "keys") parts.push(`in ${state.keyExpr}`);
  if (PAGED.has(state.what)) parts.push(`page ${state.pages.length}`);
  $("where").textContent = visible(parts.join(", "));
  $("before").disabled = state.pages.length < 2;
  $("next").disabled = !state.next;
}

async function refreshRows() {
  if (!state.storage) return;
  state.asked += 1;
  const mine = state.asked;
  const page = await ask(`${state.what}.json`, parameters());
  if (mine !== state.asked) return; // somebody went elsewhere meanwhile
  state.rows = Array.isArray(page) ? page : page.rows;
  state.next = Array.isArray(page) ? null : page.next;
  showRows();
}

function go(changes) {
  Object.assign(state, { pages: [""], next: null, rows: null, sort: "", key: "", source: "" }, changes);
  showRows();
  refreshRows().then(() => trouble(""), (error) => trouble(error.message));
}

function open(row) {
  if (state.what === "keys") go({ what: "samples", key: row.key, source: state.source });
  else if (state.what === "sources" && state.key) go({ what: "samples", key: state.key, source: row.source });
  else if (state.what === "sources") go({ what: "keys", source: row.source });
  else if (state.what === "samples") openSample(row);
}

function showSample(row) {
  const facts = $("sample-facts");
  facts.replaceChildren();
  for (const name of ["key", "source", "epoch", "sn", "time", "kind", "encoding", "bytes", "attachment"]) {
    if (text(row, name) !== "") fact(facts, name, text(row, name));
  }
  fact(facts, "payload", row.form || "none");
  $("sample-payload").textContent = visible(row.value);
}

async function openSample(row) {
  showSample(row);
  $("sample").showModal();
  try {
    const page = await ask("samples.json", { storage: state.storage, key: row.key, source: row.source, at: row.ntp64, chars: 65536 });
    const whole = page.rows.find((one) => one.sn === row.sn && one.epoch === row.epoch);
    if (whole && $("sample").open) showSample(whole);
  } catch (error) {
    $("sample-payload").textContent += `\n\n${error.message}`;
  }
}

// ---- refreshing, keyboard

async function refresh() {
  const withEvents = state.refreshes % EVENTS_EVERY === 0;
  state.refreshes += 1;
  const report = await ask("status.json", withEvents ? {} : { events: 0 });
  showStorages(report);
  if (withEvents) showTimeline(report);
  await refreshRows();
}

async function run() {
  if (!state.paused && !document.hidden) {
    try {
      await refresh();
      trouble("");
    } catch (error) {
      trouble(`${error.message}; trying again`);
    }
  }
  setTimeout(run, REFRESH_MS);
}

function pause() {
  state.paused = !state.paused;
  $("pause").setAttribute("aria-pressed", String(state.paused));
  $("pause").textContent = state.paused ? "go on" : "pause";
}

function turn(step) {
  if (step > 0 && state.next) state.pages.push(state.next);
  else if (step < 0 && state.pages.length > 1) state.pages.pop();
  else return;
  refreshRows().catch((error) => trouble(error.message));
}

function typed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || $("sample").open) return;
  const isTyping = ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName);
  if (event.key === "/" && !isTyping) { event.preventDefault(); $("key-expr").focus(); }
  else if (event.key === "p" && !isTyping) pause();
  else if (event.key === "Escape" && isTyping) event.target.blur();
  else if (event.key === "Escape" && (state.key || state.source)) go({ what: "keys" });
}

$("pause").addEventListener("click", pause);
$("before").addEventListener("click", () => turn(-1));
$("next").addEventListener("click", () => turn(1));
$("sample-close").addEventListener("click", () => $("sample").close());
$("storage").addEventListener("change", () => go({ what: "keys", storage: $("storage").value }));
$("search").addEventListener("submit", (event) => {
  event.preventDefault();
  go({ what: "keys", storage: $("storage").value, keyExpr: $("key-expr").value.trim() });
});
for (const tab of document.querySelectorAll("[role=tab]")) {
  tab.addEventListener("click", () => go({ what: tab.dataset.what, key: state.what === "samples" && tab.dataset.what === "sources" ? state.key : "" }));
}
document.addEventListener("keydown", typed);
run();
