"use strict";
// Shows one view at a time: all controllers, the Lease, the objects of one controller, or one object. The part after `#` names the view. The
// server sends it again when it changes. Texts from the cluster become text nodes only, never markup.

const main = document.getElementById("main");
const connection = document.getElementById("connection");
let source = null;
let latest = null;
let route = null;
let typing = 0;
let clock = 0; // What the host's clock is ahead of the browser's, in milliseconds.

// Creates an element. Attributes that are undefined or false are left out.
function h(name, attributes, ...children) {
  const svg = ["svg", "path", "line", "title"].includes(name);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith("on")) element[key] = value;
    else if (value !== undefined && value !== false && value !== null) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false && child !== ""));
  return element;
}

const key = (node) => (node.getAttribute ? node.getAttribute("data-key") : null);
const fits = (old, now) => old.nodeType === now.nodeType && old.nodeName === now.nodeName && key(old) === key(now);

// Changes `old` into `now`. What is the same stays the same element, so that the focus and the selection stay where they
// are.
function patch(old, now) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== now.data) old.data = now.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (!now.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const { name, value } of now.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const name of ["onclick", "oninput", "onchange", "onsubmit"]) if (now[name]) old[name] = now[name];
  const wanted = new Set([...now.childNodes].map(key).filter(Boolean));
  for (const child of [...old.childNodes]) if (key(child) && !wanted.has(key(child))) child.remove();
  const keyed = new Map([...old.childNodes].filter(key).map((child) => [key(child), child]));
  let at = old.firstChild;
  for (const next of [...now.childNodes]) {
    let match = key(next) ? keyed.get(key(next)) : at && !key(at) ? at : null;
    if (match && !fits(match, next)) {
      if (match === at) at = at.nextSibling;
      match.remove();
      match = null;
    }
    if (!match) old.insertBefore(next, at);
    else {
      if (match === at) at = at.nextSibling;
      else old.insertBefore(match, at);
      patch(match, next);
    }
  }
  while (at) {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
}

function age(time) {
  if (!time) return "";
  const seconds = Math.max(0, Math.round((Date.now() + clock - Date.parse(time)) / 1000));
  const text = seconds < 120 ? `${seconds} s` : seconds < 7200 ? `${Math.floor(seconds / 60)} min` : seconds < 172800 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86400)} d`;
  return h("time", { datetime: time, title: time }, text);
}

const duration = (ms) => (ms < 10 ? `${ms.toFixed(1)} ms` : ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);
const short = (digest) => (digest || "").replace("sha256:", "").slice(0, 12);
const link = (...parts) => "#/" + parts.map(encodeURIComponent).join("/");
const cell = (label, ...content) => h("td", { "data-label": label }, ...content);
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

function table(headings, rows, empty) {
  if (!rows.length) return h("p", { class: "quiet" }, empty);
  return h("table", {}, h("thead", {}, h("tr", {}, headings.map((text) => h("th", { scope: "col" }, text)))), h("tbody", {}, rows));
}

// Draws numbers over time. `bad` is drawn over them in another colour.
function plot(label, numbers, bad) {
  const top = Math.max(...numbers, 1e-9);
  const line = (all) => all.map((y, x) => `${x ? "L" : "M"}${((x * 118) / Math.max(all.length - 1, 1) + 1).toFixed(1)} ${(28 - (26 * y) / top).toFixed(1)}`).join("");
  return h("svg", { class: "plot", viewBox: "0 0 120 30", preserveAspectRatio: "none", role: "img", "aria-label": label },
    h("title", {}, label), h("line", { x1: 0, x2: 120, y1: 29, y2: 29 }), numbers.length > 1 && h("path", { d: line(numbers) }),
    bad && sum(bad) > 0 && h("path", { class: "bad", d: line(bad) }));
}

const command = ({ what, command }) => h("div", { "data-key": what + command }, what, h("code", { class: "command", tabindex: 0 }, command));

// All controllers.
function overview(data) {
  const rows = data.controllers.map((it) => {
    const of = (field) => it.steps.map((step) => step[field]);
    const seconds = Math.max(it.steps.length * it.stepSeconds, 1);
    const count = sum(of("reconciles"));
    const errors = sum(of("errors"));
    const slowest = Math.max(...of("maxMs"), 0);
    const mean = count ? sum(of("totalMs")) / count : 0;
    const candidate = it.plugin && it.plugin.candidate;
    return h("tr", { "data-key": it.name },
      cell("Controller", h("a", { href: link("controller", it.name) }, it.name), h("div", { class: "quiet" }, it.kind || ""), h("div", { class: "quiet" }, it.source || "")),
      cell("Health", h("span", { class: it.ok ? "good" : "bad" }, it.ok ? "ok" : "not ready"), it.ok ? null : h("div", {}, it.texts.join("; ")),
        candidate && h("div", { class: candidate.state === "proving" ? "waiting" : "bad" }, `version ${candidate.version || "?"} ${stateOf(candidate)}`)),
      cell("Objects", String(it.objects)),
      cell("Queue", `${it.queue}`, it.queue ? h("span", { class: "quiet" }, ` for ${it.queueAge} s`) : null, plot(`${it.queue} wait`, [...of("queue").slice(0, -1), it.queue])),
      cell("Reconciles", `${(count / seconds).toFixed(1)}/s`, plot(`${count} reconciles, ${errors} failed`, of("reconciles"), of("errors"))),
      cell("Errors", h("span", { class: errors ? "bad" : "good" }, String(errors))),
      cell("Latency", `${duration(mean)}, slowest ${duration(slowest)}`, plot(`mean ${duration(mean)}, slowest ${duration(slowest)}`, of("maxMs"))));
  });
  return [
    h("h1", {}, "Controllers"),
    data.checks.filter((check) => !check.ok || check.text).map((check) => h("p", { "data-key": check.name, class: check.ok ? "waiting" : "bad" }, `${check.name}: ${check.text}`)),
    h("p", {}, h("a", { href: "#/lease" }, "Which replica leads")),
    table(["Controller", "Health", "Objects", "Queue", "Reconciles", "Errors", "Latency"], rows, "The configuration has no controllers."),
    h("p", { class: "quiet" }, "The plots and the numbers beside them are of the last ten minutes."),
    h("h2", {}, "Failed and slow reconciles"), reconciles(data.troubled, true), newest(data.troubled),
    h("h2", {}, "Events"), events(data.events, true), newest(data.events),
  ];
}

// The server leaves out what is older.
const newest = (all) => (all.length >= 50 ? h("p", { class: "quiet" }, "The newest 50. The pages of the objects show more.") : null);

const LEADS = { here: ["good", "this replica leads"], other: ["", "another replica leads"], nobody: ["bad", "no replica leads"] };

// The Lease, and which replica leads.
function lease({ lease: it, identity }) {
  const row = () => {
    const late = it.renewed && Date.now() + clock - Date.parse(it.renewed) > it.validSeconds * 1000;
    return h("tr", { "data-key": it.name },
      cell("Lease", h("strong", {}, `${it.namespace}/${it.name}`)),
      cell("Leader", h("span", { class: LEADS[it.state][0] }, LEADS[it.state][1]), h("div", { class: "quiet" }, it.holder || "")),
      cell("Since", it.holder ? age(it.acquired) : ""),
      cell("Renewed", h("span", { class: late ? "bad" : undefined }, age(it.renewed)), it.renewed ? " ago" : "", h("div", { class: "quiet" }, `valid for ${it.validSeconds} s`)),
      cell("Changes", String(it.transitions)));
  };
  return [
    h("h1", {}, "Lease"),
    it && it.problem && h("p", { class: "bad" }, it.problem),
    it
      ? [
          table(["Lease", "Leader", "Since", "Renewed", "Changes"], [row()]),
          h("p", { class: "quiet" }, `This replica is ${identity}. The Lease names the replica that leads, and none of those that stand by. The times are those that the leader wrote, by its own clock.`),
        ]
      : h("p", {}, "There is no election: ", h("code", {}, "leadership"), " is ", h("code", {}, "none"), ", so this host writes for all controllers, and no other may run."),
    h("p", {}, h("a", { href: "#/" }, "All controllers")),
  ];
}

const stateOf = (candidate) => ({ proving: "is being proved", heldBack: "is held back", putAside: "is put aside", refused: "is refused" })[candidate.state] || candidate.state;
const object = (controller, name) => h("a", { href: link("object", controller, name) }, name);
const trace = (id) => id && h("div", { class: "quiet" }, "trace ", h("code", {}, id));

function reconciles(all, wide) {
  const rows = all.map((it) => h("tr", { "data-key": it.at + it.parent },
    cell("When", age(it.at)),
    wide && cell("Object", h("span", { class: "quiet" }, it.controller, " "), object(it.controller, it.parent)),
    cell("Reason", it.reason),
    cell("Duration", duration(it.tookMs), h("span", { class: "quiet" }, ` after ${duration(it.waitedMs)} in the queue`)),
    cell("Outcome", h("span", { class: it.outcome === "ok" ? "good" : "bad" }, it.outcome), it.message ? ` ${it.message}` : null, trace(it.traceId))));
  const headings = ["When", wide && "Object", "Reason", "Duration", "Outcome"].filter(Boolean);
  return table(headings, rows, wide ? "None." : "None that this replica remembers.");
}

function events(all, wide) {
  const rows = all.map((it) => h("tr", { "data-key": it.at + it.about + it.reason },
    cell("When", age(it.at)),
    wide && cell("Object", h("span", { class: "quiet" }, it.controller, " "), object(it.controller, it.about)),
    cell("Reason", h("span", { class: it.warning ? "waiting" : "" }, it.reason)),
    cell("Message", it.note, trace(it.traceId))));
  return table(["When", wide && "Object", "Reason", "Message"].filter(Boolean), rows, "None that this replica has published.");
}

function difference(text) {
  if (!text) return null;
  const kind = (line) => (line.startsWith("+") ? "good" : line.startsWith("-") ? "bad" : undefined);
  return h("pre", { tabindex: 0 }, text.split("\n").map((line) => h("span", { class: kind(line) }, line + "\n")));
}

function plugin(it) {
  const report = it.plugin;
  if (!report) return null;
  const { live, candidate } = report;
  const others = report.kept.filter((kept) => !live || kept.digest !== live.digest);
  return [
    h("h2", {}, "Plugin"),
    live ? h("p", {}, `${live.name} ${live.version} `, h("code", {}, short(live.digest)), " is live for ", age(live.since), `: ${live.because}`) : h("p", { class: "bad" }, "No version is live."),
    report.pinned && h("p", { class: "waiting" }, "Pinned: ", h("code", {}, report.pinned)),
    live && live.diff && h("details", {}, h("summary", {}, "What the live version changed"), difference(live.diff)),
    candidate && h("div", { "data-key": "candidate", id: "candidate" },
      h("p", { class: candidate.state === "proving" ? "waiting" : "bad" }, `Version ${candidate.version || "?"} `, h("code", {}, short(candidate.digest)), ` ${stateOf(candidate)} for `, age(candidate.since), candidate.reason ? ` (${candidate.reason})` : ""),
      h("p", {}, candidate.message), difference(candidate.diff)),
    others.length ? h("p", {}, "Earlier versions: ", others.map((kept, i) => [i ? ", " : "", `${kept.version} `, h("code", {}, short(kept.digest))])) : null,
  ];
}

const STATES = { ready: ["good", "ready"], notReady: ["waiting", "not ready"], stalled: ["bad", "stalled"], deleting: ["waiting", "being deleted"], paused: ["quiet", "paused"], new: ["waiting", "new"] };
const state = (it) => h("span", { class: STATES[it.state][0] }, STATES[it.state][1]);

// The objects of one controller, a page at a time.
function objects(data) {
  const { filter, problems, back } = route;
  const go = (change) => { Object.assign(route, change); open(); };
  const rows = data.objects.map((it) => h("tr", { "data-key": it.name },
    cell("Name", object(data.controller, it.name)), cell("State", state(it)), cell("Age", age(it.created)),
    cell("Reason", it.state === "ready" ? null : [it.reason, it.message ? `: ${it.message}` : null])));
  const first = back.length * 100;
  return [
    h("h1", {}, data.controller, h("span", { class: "quiet" }, ` ${data.kind}`)),
    h("div", { id: "plugin" }, route.details ? plugin(route.details) : null),
    h("h2", {}, "Objects"),
    h("form", { role: "search", onsubmit: (event) => event.preventDefault() },
      h("input", { type: "search", id: "filter", placeholder: "Filter by name", "aria-label": "Filter by name", maxlength: 253, autocomplete: "off",
        oninput: (event) => { clearTimeout(typing); const text = event.target.value; typing = setTimeout(() => go({ filter: text, after: "", back: [] }), 200); } }),
      h("label", {}, h("input", { type: "checkbox", id: "problems", onchange: (event) => go({ problems: event.target.checked, after: "", back: [] }) }), " Not ready only"),
      h("span", { id: "count", class: "quiet" }, `${data.total} object${data.total === 1 ? "" : "s"}, ${data.problems} not ready`, filter || problems ? `, ${data.matching} match` : null)),
    data.next || back.length ? h("form", { onsubmit: (event) => event.preventDefault() },
      h("button", { type: "button", id: "previous", disabled: !back.length, onclick: () => go({ after: back.pop() || "", back }) }, "Previous"),
      h("button", { type: "button", id: "next", disabled: !data.next, onclick: () => { back.push(route.after); go({ after: data.next, back }); } }, "Next"),
      h("span", { class: "quiet" }, rows.length ? `${first + 1} to ${first + rows.length} of ${data.matching}` : "")) : null,
    data.unreadable.map((text) => h("p", { class: "bad", "data-key": text }, `The list is incomplete. ${text}`)),
    data.namespaces ? h("p", { class: "quiet", id: "scope" }, `The controller watches ${data.namespaces.length ? `the namespace${data.namespaces.length > 1 ? "s" : ""} ${data.namespaces.join(", ")}` : "no namespace"}${data.moreNamespaces ? ` and ${data.moreNamespaces} more` : ""}. Objects elsewhere are not shown.`) : null,
    table(["Name", "State", "Age", "Reason"], rows, data.total ? "No object matches." : "There are no objects."),
  ];
}

function child(it) {
  const made = [it.retained && "retained", it.plugin, it.generation && `generation ${it.generation}`].filter(Boolean).join(", ");
  return h("li", { "data-key": `${it.kind}/${it.name}` },
    h("div", {}, `${it.kind} `, h("strong", {}, it.name), " ", h("span", { class: it.unready ? "bad" : "good" }, it.unready || "ready"),
      h("span", { class: "quiet" }, " ", age(it.created), made ? ` (${made})` : "")),
    it.children && h("ul", {}, it.children.map(child)),
    it.more ? h("div", { class: "quiet" }, `It owns ${it.more} more that are not shown.`) : null);
}

// The most children that the server sends.
const MOST = 2000;

// One object with its tree.
function single(data) {
  const [namespace, name] = data.name.includes("/") ? data.name.split("/") : [null, data.name];
  const [group, , its] = data.kind.split("/");
  // With the group, as in messages: another project may have a kind of this name.
  const kind = `${its}.${group}`;
  const place = namespace ? ` --namespace ${namespace}` : "";
  const more = data.totalChildren - data.children.length;
  const behind = data.observedGeneration !== null && data.observedGeneration < data.generation;
  return [
    h("h1", {}, `${kind} `, data.name, " ", state(data)),
    h("p", {}, h("a", { href: link("controller", data.controller) }, data.controller), h("span", { class: "quiet" }, `, generation ${data.generation}`, behind ? `, last reconciled ${data.observedGeneration}` : "", ", created ", age(data.created), " ago")),
    !data.leads && h("p", { class: "waiting" }, "Another replica leads: this one shows the current state, and none of that replica's reconciles and Events."),
    h("h2", {}, "Conditions"),
    table(["Type", "Status", "Since", "Reason"], data.conditions.map((it) => h("tr", { "data-key": it.type },
      cell("Type", it.type), cell("Status", it.status), cell("Since", age(it.since)), cell("Reason", `${it.reason}: ${it.message}`))), "None: no host has written a status yet."),
    data.blocks && h("div", {}, h("h2", {}, "Holds a new version of the plugin back"), difference(data.blocks)),
    h("h2", {}, "Children", h("span", { class: "quiet" }, ` ${data.totalChildren}, ${data.unreadyChildren} not ready`)),
    data.unreadable.map((text) => h("p", { class: "bad", "data-key": text }, `Not shown: ${text}`)),
    data.children.length ? h("ul", { class: "tree", id: "tree" }, data.children.map(child)) : h("p", { class: "quiet" }, "None."),
    more > 0 && data.children.length >= MOST ? h("p", { id: "rest" }, `${more} more are not shown: the page shows at most ${MOST} children, those that are not ready first. operator-host explain lists all.`) : null,
    more > 0 && data.children.length < MOST ? h("p", {}, `${more} more. `, h("button", { type: "button", id: "more", onclick: () => { route.children = Math.min(MOST, (route.children || 100) * 5); open(); } }, "Show more")) : null,
    h("p", { class: "quiet", id: "watched" }, `Shown are the kinds that this controller watches: ${data.watchedKinds.join(", ") || "none"}. What others created for them, such as the pods of a Deployment, is shown by the command below.`),
    h("h2", {}, "Reconciles"), reconciles(data.reconciles, false),
    h("h2", {}, "Events"), events(data.events, false),
    h("h2", {}, "Find out more"),
    command({ what: "What to do next", command: `operator-host explain ${kind.toLowerCase()} ${name}${place}` }),
  ];
}

const VIEWS = { overview, lease, objects, object: single };

function render() {
  if (!latest) return;
  const page = h("main", { id: "main", tabindex: -1 });
  if (latest.error) page.append(h("h1", {}, "Nothing to show"), h("p", {}, latest.error), h("p", {}, h("a", { href: "#/" }, "All controllers")));
  else page.append(...[VIEWS[route.view](latest)].flat(Infinity).filter((part) => part));
  patch(main, page);
  if (latest.version) document.getElementById("host").textContent = `${latest.version} ${latest.identity}`;
}

function parse() {
  const parts = location.hash.slice(2).split("/").filter(Boolean).map((part) => { try { return decodeURIComponent(part); } catch { return part; } });
  if (parts[0] === "controller" && parts[1]) return { view: "objects", controller: parts[1], filter: "", problems: false, after: "", back: [] };
  if (parts[0] === "object" && parts[2]) return { view: "object", controller: parts[1], name: parts[2] };
  if (parts[0] === "lease") return { view: "lease" };
  return { view: "overview" };
}

// Opens the stream of the current view. The view before it stays until the first answer.
function open() {
  if (source) source.close();
  const { view, controller, name, filter, problems, after, children } = route;
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries({ view, controller, name, filter, after, children })) if (value) query.set(key, value);
  if (problems) query.set("problems", "1");
  const opened = new EventSource(`stream?${query}`);
  source = opened;
  opened.onmessage = (event) => {
    if (opened !== source) return;
    clock = Number(event.lastEventId) - Date.now();
    latest = JSON.parse(event.data);
    connected(true);
    render();
    details();
  };
  opened.onopen = () => connected(true);
  opened.onerror = () => {
    if (opened !== source) return;
    connected(false);
    // A stream that was refused is not opened again by the browser.
    if (opened.readyState === EventSource.CLOSED) setTimeout(() => { if (opened === source) open(); }, 5000);
  };
}

function connected(is) {
  const text = is ? "live" : "disconnected, trying again";
  if (connection.textContent !== text) connection.textContent = text;
  connection.className = is ? "good" : "bad";
}

// The list of objects also shows the plugin, which is part of the view of the controller.
let asked = 0;
async function details() {
  if (route.view !== "objects" || Date.now() - asked < 2000) return;
  asked = Date.now();
  const current = route;
  try {
    const answer = await fetch(`view?view=controller&controller=${encodeURIComponent(current.controller)}`);
    if (current !== route || !answer.ok) return;
    const mine = await answer.json();
    if (current !== route) return;
    if (JSON.stringify(mine) === JSON.stringify(route.details)) return;
    route.details = mine;
    render();
  } catch { /* The next message asks again. */ }
}

function navigate() {
  if (location.hash && !location.hash.startsWith("#/")) return;
  route = parse();
  latest = null;
  asked = 0;
  main.replaceChildren(h("p", { class: "quiet" }, "Loading"));
  open();
}

addEventListener("hashchange", () => { navigate(); main.focus(); scrollTo(0, 0); });
setInterval(render, 5000);
setInterval(() => { if (latest) details(); }, 2000);
navigate();
