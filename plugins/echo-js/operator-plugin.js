// The SDK of plugins in JavaScript and TypeScript: it hides the records of the plugin contract, in which objects are text.
// operator-plugin.d.ts has the types, for editors and for TypeScript.
import { log as write } from "operator-host:plugin/logging@1.0.0";
import { getInsecureRandomU64 } from "wasi:random/insecure@0.2.0";

// The module is loaded when the plugin is built, and the engine as it is then is the start of every call.
let isBuilt = true;

function requireCall(what, why) {
  if (isBuilt) throw new Error(`${what} is called while the module is loaded, when the plugin is built: ${why}`);
}

// The engine's numbers are drawn when the plugin is built, and its clock starts then.
Math.random = () => {
  requireCall("Math.random", "the number would be the same in every call. Call it in a function");
  return (Number(getInsecureRandomU64()) / 2 ** 64) % 1;
};
if (globalThis.__cqjs) delete globalThis.performance;

/** Writes lines to the host's log, where they get the parent's reference and the plugin's digest. */
export const log = Object.fromEntries(
  ["trace", "debug", "info", "warn", "error"].map((level) => [
    level,
    (...values) => {
      requireCall(`log.${level}`, "there is no log yet. Call it in a function");
      write(level, values.map(textOf).join(" ").toWellFormed());
    },
  ]),
);
globalThis.console = { ...log, log: log.info };

class Failure extends Error {
  constructor(tag, message, rest) {
    requireText(message, `the message of ${tag === "retry" ? "Retry" : "Invalid"}`);
    super(message);
    this.failure = { tag, val: { message, conditions: [], ...rest } };
  }

  /** Sets the parent's whole status; without it, the status stays as it is. */
  status(status) {
    this.failure.val.status = statusText(status);
    return this;
  }

  /** Adds a condition to those of the parent. `Ready` has no effect: the host's reports the failure. */
  condition(...parts) {
    this.failure.val.conditions.push(conditionRecord(...parts));
    return this;
  }
}

/** To throw: the user must change the resource. Nothing is retried until it changes. */
export class Invalid extends Failure {
  constructor(message, reason) {
    if (reason !== undefined) requireText(reason, "the reason of Invalid");
    super("invalid", message, { reason });
  }
}

/** To throw: something does not exist yet, or failed temporarily. The host retries, after this time or its back-off. */
export class Retry extends Failure {
  constructor(message, afterMs) {
    super("retry", message, { afterMs: afterMs === undefined ? undefined : milliseconds(afterMs, "the time of Retry") });
  }
}

/** A kind as written in a manifest. */
export function kind(apiVersion, kind) {
  requireText(apiVersion, "the apiVersion of a kind");
  requireText(kind, "the name of a kind");
  return { apiVersion, kind };
}

/** Refers to an object in the parent's namespace, or to one that exists. */
export function reference(of, name) {
  requireKind(of, "the kind of a reference");
  const { apiVersion, kind, metadata } = of;
  requireText(metadata?.name ?? name, "the name of a reference");
  return metadata
    ? { apiVersion, kind, namespace: metadata.namespace, name: metadata.name }
    : { apiVersion, kind, name };
}

const is = (object, { apiVersion, kind }) => object.kind === kind && object.apiVersion === apiVersion;

/** Reports whether an object is being deleted. */
export const isTerminating = (object) => object.metadata.deletionTimestamp != null;

/** Returns the status of a condition of an object: `True`, `False` or `Unknown`; undefined when it is missing. */
export const conditionOf = (object, type) => object.status?.conditions?.find((it) => it.type === type)?.status;

/** Reports whether a Pod has ended permanently, such as an evicted one. */
export const isFinishedPod = (pod) => ["Failed", "Succeeded"].includes(pod.status?.phase);

/** Reports whether a Pod is ready. */
export function isReadyPod(pod) {
  if (isTerminating(pod) || pod.status?.phase === "Failed") return false;
  if (pod.status?.phase === "Succeeded") return ["OnFailure", "Never"].includes(pod.spec.restartPolicy);
  return conditionOf(pod, "Ready") === "True";
}

/** The input of one call. */
export class Request {
  // Without the trace context: it differs in each call, and an answer must not depend on it.
  constructor({ parent, children, related, traceparent: _, ...plain }) {
    // Such as `now`, the host's clock in RFC 3339: `Date` has the same time.
    Object.assign(this, plain);
    /** The custom resource. */
    this.parent = JSON.parse(parent);
    this.name = this.parent.metadata.name;
    /** Undefined for a cluster-scoped parent. */
    this.namespace = this.parent.metadata.namespace;
    this.spec = this.parent.spec ?? {};
    /** The objects in the cluster that the parent owns. */
    this.children = children.map((child) => JSON.parse(child));
    this.related = new Map(related.map(({ id, objects }) => [id, objects.map((it) => JSON.parse(it))]));
  }

  /** Returns the children of a kind. */
  childrenOf(kind) {
    requireKind(kind, "the kind of children");
    return this.children.filter((child) => is(child, kind));
  }

  /** Returns a child by kind and name, in the parent's namespace unless another one is given. */
  child(kind, name, namespace = this.namespace) {
    return this.childrenOf(kind).find(({ metadata }) => metadata.name === name && metadata.namespace === namespace);
  }

  /** Returns the objects that the host read for a need; undefined when it has not read them yet. */
  answer(need) {
    return this.related.get(need.id);
  }
}

// What both answers have. All arguments are checked where the author's line is on the stack.
class Answer {
  constructor(status) {
    const fields = {
      // fields of Response without status: as in wit/types.wit, by plugins/records.py
      done: false,
      children: [],
      keep: [],
      generate: [],
      parent: undefined,
      conditions: [],
      events: [],
      requeueAfterMs: undefined,
      requeueAt: undefined,
      needs: [],
      // end of fields
      status: statusText(status),
    };
    this.fields = new Proxy(fields, {
      set(_, field, value) {
        if (!(field in fields)) throw new TypeError(`an answer has no field \`${field}\``);
        fields[field] = value;
        return true;
      },
    });
    // What is set here by mistake, in place of there, would be lost.
    Object.seal(this);
  }

  /** Adds children that should exist, each as a complete object. */
  child(...objects) {
    for (const object of objects) {
      requireKind(object, "a child");
      requireText(object.metadata?.name, `the metadata.name of a ${object.kind}`);
      requireJson(object, `${object.kind} ${object.metadata.name}`);
    }
    this.fields.children.push(...objects);
    return this;
  }

  /** Adds a condition. `Ready` replaces the one that the host derives. */
  condition(type, status, reason, message) {
    this.fields.conditions.push(conditionRecord(type, status, reason, message));
    return this;
  }

  /** Adds an Event on the parent: type `normal` or `warning`. */
  event(type, reason, message) {
    require(["normal", "warning"].includes(type), "the type of an Event", '"normal" or "warning"', type);
    requireText(reason, "the reason of an Event");
    requireText(message, "the message of an Event");
    this.fields.events.push({ type, reason, message });
    return this;
  }

  /** Adds objects to read and to watch: `{ id, apiVersion, kind, namespace, namespaceSelector, name, names, labelSelector }`. */
  need(...needs) {
    for (const need of needs) {
      requireKind(need, "a need");
      requireText(need.id, "the id of a need");
      const { names = [], ...texts } = need;
      requireTexts(texts, "need", ["id", "apiVersion", "kind", "namespace", "namespaceSelector", "name", "labelSelector"]);
      require(Array.isArray(names), "the names of a need", "a list", names);
      for (const name of names) requireText(name, "a name of a need");
    }
    this.fields.needs.push(...needs.map((need) => ({ names: [], ...need })));
    return this;
  }

  /** Requests another call at this time of the host's clock even if nothing changes: a Date, or a text in RFC 3339. */
  requeueAt(time) {
    const date = typeof time === "string" ? new Date(time) : time;
    const isTime = date instanceof Date && !Number.isNaN(date.getTime());
    require(isTime, "the time of requeueAt", "a Date, or a text such as 2026-01-02T03:04:05Z", time);
    this.fields.requeueAt = date.toISOString();
    return this;
  }

  /** Requests another call after this time even if nothing changes. */
  requeueAfterMs(time) {
    this.fields.requeueAfterMs = milliseconds(time, "the time of requeueAfterMs");
    return this;
  }
}

/** What should be. The host deletes every child of the parent that the response does not name. */
export class Response extends Answer {
  /** Keeps children as they are: neither applied nor deleted. Takes references and objects. */
  keep(...children) {
    for (const child of children) {
      requireKind(child, "a child to keep");
      requireText((child.metadata ?? child).name, "the name of a child to keep");
    }
    this.fields.keep.push(...children.map((child) => (child.metadata ? reference(child) : child)));
    return this;
  }

  /** Sets the fields that the parent should have: for a Controller that decorates, below the paths of its `fields`. */
  parent(fields) {
    this.fields.parent = objectText(fields, "the parent");
    return this;
  }

  /** Adds a Secret whose values the host generates once: `{ key, length, alphabet }` for each. */
  generate(name, ...entries) {
    requireText(name, "the name of a generated Secret");
    for (const entry of entries) {
      requireObject(entry, "an entry of a generated Secret");
      requireText(entry.key, "the key of a generated value");
      require(Number.isInteger(entry.length), `the length of ${entry.key}`, "an integer", entry.length);
      if (entry.alphabet !== undefined) requireText(entry.alphabet, `the alphabet of ${entry.key}`);
    }
    this.fields.generate.push({ name, entries });
    return this;
  }
}

/** What a cleanup answers: with `done`, the parent may go. */
export class Cleanup extends Answer {
  constructor(...given) {
    const [done = given.length === 0 || undefined, status] = given;
    super(status);
    // A value that is missing, such as that of a condition that is not there yet, does not mean done.
    require(typeof done === "boolean", "the first argument of Cleanup", "true or false", done);
    this.fields.done = done;
  }
}

/** Returns the export of a plugin from its description and functions. */
export function plugin(options) {
  const { name, version, parent, also = [], makes = [], reads = [], crd, spec = {}, ...functions } = options;
  const { reconcile, cleanup, versions = [], convert, defaults, validate, ...unknown } = functions;
  requireText(name, "the plugin's name");
  requireText(version, "the plugin's version");
  requireKind(parent, "the plugin's parent");
  for (const [what, kinds] of Object.entries({ also, makes, reads })) {
    require(Array.isArray(kinds), `the plugin's ${what}`, "a list of kinds", kinds);
    for (const it of kinds) requireKind(it, `one of the plugin's ${what}`);
  }
  if (crd !== undefined) requireObject(crd, "the plugin's crd");
  requireType(spec, "spec");
  require(Array.isArray(versions), "the plugin's versions", "a list of names", versions);
  requireFunction(reconcile, "the plugin's reconcile");
  for (const [what, it] of Object.entries({ cleanup, convert, defaults, validate })) {
    if (it !== undefined) requireFunction(it, `the plugin's ${what}`);
  }
  require(versions.length === 0 || convert, "the plugin's convert", "a function, as there are versions", convert);
  for (const option of Object.keys(unknown)) throw new TypeError(`a plugin has no option \`${option}\``);

  return {
    describe: () => ({
      name,
      version,
      parent,
      also,
      makes,
      reads,
      finalizer: cleanup !== undefined,
      crd: crd && JSON.stringify(crd),
      versions: versions.length ? [...new Set([...versions, parent.apiVersion.split("/").at(-1)])] : [],
      defaults: defaults !== undefined,
      validates: validate !== undefined,
    }),
    validate: (parent, oldParent) =>
      called(validate, () => {
        const read = new Request({ parent, children: [], related: [], now: "" });
        const wrong = mismatch(read.spec, spec, "spec");
        if (wrong) return [fieldError(wrong)];
        let errors;
        try {
          errors = validate(read, oldParent == null ? undefined : JSON.parse(oldParent)) ?? [];
        } catch (error) {
          if (!(error instanceof Invalid)) throw error instanceof Retry ? new Error("validate cannot throw Retry") : error;
          errors = [{ path: "spec", message: error.message }];
        }
        require(Array.isArray(errors), "validate", "return a list of { path, message }", errors, "must");
        for (const error of errors) {
          requireObject(error, "what validate finds");
          requireTexts(error, "field error", ["path", "message"]);
          for (const part of ["path", "message"]) requireText(error[part], `the ${part} of what validate finds`);
        }
        return errors;
      }),
    reconcile: (request) =>
      called(reconcile, () => {
        const read = new Request(request);
        const wrong = mismatch(read.spec, spec, "spec");
        if (wrong) throw new Invalid(wrong);
        const { fields } = answerOf(reconcile, Response, read);
        const terminating = read.children.filter(isTerminating);
        const [waits, applied] = split(fields.children, (child) => terminating.find((it) => refersTo(child, it)));
        // The host applies a child again when it is gone.
        fields.keep.push(...waits.map((child) => reference(terminating.find((it) => refersTo(child, it)))));
        return record({ ...fields, children: applied });
      }),
    // A parent must be able to go whatever its spec is.
    cleanup: (request) =>
      called(cleanup, () => record(answerOf(cleanup, Cleanup, new Request(request)).fields)),
    convert: (apiVersion, objects) => called(convert, () => objects.map((it) => converted(convert, apiVersion, it))),
    default: (parent) =>
      called(defaults, () => {
        const { spec = {}, ...rest } = JSON.parse(parent);
        const changed = defaults(spec, { ...rest, spec }) ?? spec;
        require(isPlain(changed), "defaults", "return the spec or nothing", changed, "must");
        requireJson(changed, "spec");
        return JSON.stringify(changed);
      }),
  };
}

// Runs what calls a function of the author, and reports what that throws.
function called(author, run) {
  isBuilt = false;
  try {
    return run();
  } catch (error) {
    if (error?.failure) throw error.failure;
    const thrown = error instanceof Error ? error : new Error(`${author.name} threw ${shown(error)}, which is no Error`);
    // The host takes an error of several lines for the exception that ends the call.
    log.error(`${thrown}\n${placeOf(error, author)}`);
    throw thrown;
  }
}

function answerOf(author, type, request) {
  const answer = author(request);
  if (answer instanceof type) return answer;
  const why = answer instanceof Promise ? ": nothing can be awaited, so it must not be `async`" : "";
  throw new TypeError(`${author.name} must return a ${type.name} (it returned ${shown(answer)})${why}`);
}

// Children can be changed after they were added.
function record(fields) {
  for (const child of fields.children) requireJson(child, `${child.kind} ${child.metadata.name}`);
  return { ...fields, children: fields.children.map((child) => JSON.stringify(child)) };
}

function converted(convert, apiVersion, text) {
  try {
    const object = JSON.parse(text);
    if (object.apiVersion === apiVersion) return { tag: "ok", val: text };
    const result = convert(object, apiVersion.split("/").at(-1));
    require(isPlain(result), "convert", "return an object", result, "must");
    requireJson(result, "the converted object");
    return { tag: "ok", val: JSON.stringify({ ...result, apiVersion }) };
  } catch (error) {
    if (error?.failure) return { tag: "err", val: error.message };
    throw error;
  }
}

// Splits a text such as `spec.size: must be an integer`.
function fieldError(text) {
  const end = text.indexOf(": ");
  return { path: text.slice(0, end), message: text.slice(end + 2) };
}

function statusText(status) {
  return status == null ? undefined : objectText(status, "the status");
}

function objectText(value, what) {
  require(isPlain(value), what, "an object", value);
  requireJson(value, what.replace("the ", ""));
  return JSON.stringify(value);
}

function conditionRecord(type, status, reason, message) {
  requireText(type, "the type of a condition");
  require([true, false, null].includes(status), `the status of the condition ${type}`, "true, false or null", status);
  requireText(reason, `the reason of the condition ${type}`);
  require(typeof message === "string", `the message of the condition ${type}`, "a text", message);
  return { type, status: status === null ? "unknown" : `${status}`, reason, message };
}

function milliseconds(time, what) {
  const isTime = typeof time === "number" && time >= 0 && time <= Number.MAX_SAFE_INTEGER;
  require(isTime, what, "a number of milliseconds", time);
  return Math.round(time);
}

function require(holds, what, expected, value, verb = "must be") {
  if (!holds) throw new TypeError(`${what} ${verb} ${expected} (it ${verb === "must" ? "returned" : "is"} ${shown(value)})`);
}

const requireText = (value, what) => require(typeof value === "string" && value !== "", what, "a text that is not empty", value);
const requireFunction = (value, what) => require(typeof value === "function", what, "a function", value);
const requireObject = (value, what) => require(isPlain(value), what, "an object", value);

function requireKind(value, what) {
  requireObject(value, what);
  requireText(value.apiVersion, `the apiVersion of ${what}`);
  requireText(value.kind, `the kind of ${what}`);
}

function requireTexts(object, what, known) {
  for (const [field, value] of Object.entries(object)) {
    require(known.includes(field), `a field of a ${what}`, `one of ${known.join(", ")}`, field);
    if (value !== undefined) requireText(value, `the ${field} of a ${what}`);
  }
}

const LEVELS = 100;

// What JSON does not have would be lost or changed in silence.
function requireJson(value, path) {
  const problem = problemOf(value, path, []);
  // Thrown here, as a stack has ten lines, and the author's is one of them.
  if (problem) throw new TypeError(problem);
}

function problemOf(value, path, within) {
  if (value === null || typeof value === "boolean") return undefined;
  if (typeof value === "string") {
    return value.isWellFormed() ? undefined : `${path} is a text with half a character (a surrogate alone)`;
  }
  if (typeof value === "number") return Number.isFinite(value) ? undefined : `${path} is ${value}, which JSON does not have`;
  if (value instanceof Date) return Number.isNaN(value.getTime()) ? `${path} is an invalid Date` : undefined;
  if (!Array.isArray(value) && !isPlain(value)) return `${path} is ${shown(value)}, which JSON does not have`;
  if (within.includes(value)) return `${path} contains itself`;
  if (within.length >= LEVELS) return `${path} is nested more than ${LEVELS} levels deep`;
  const inner = [...within, value];
  if (Array.isArray(value)) {
    // With those that a list skips.
    return first(Array.from(value, (item, index) => () => problemOf(item, `${path}[${index}]`, inner)));
  }
  // As in JSON.stringify, a field that is undefined is left out.
  const fields = Object.entries(value).filter(([, item]) => item !== undefined);
  return first(
    fields.map(([key, item]) => () => problemOf(key, `a key of ${path}`, inner) ?? problemOf(item, `${path}.${key}`, inner)),
  );
}

const isPlain = (value) => Object.prototype.toString.call(value) === "[object Object]";

const types = {
  string: ["a string", (value) => typeof value === "string"],
  integer: ["an integer", Number.isInteger],
  number: ["a number", (value) => typeof value === "number"],
  boolean: ["true or false", (value) => typeof value === "boolean"],
  array: ["a list", Array.isArray],
  object: ["an object", isPlain],
};

const alternatives = (type) => type.replace("?", "").split("|");

// Checks the type of a field as the plugin declares it.
function requireType(type, path) {
  if (typeof type === "string") {
    for (const it of alternatives(type)) {
      if (!Object.hasOwn(types, it)) throw new TypeError(`${path} is of type "${it}", which is none of ${Object.keys(types).join(", ")}`);
    }
  } else if (Array.isArray(type)) {
    require(type.length === 1, `the type of ${path}`, "a list of one type, that of the items", type);
    requireType(type[0], `${path}[]`);
  } else {
    requireObject(type, `the type of ${path}`);
    for (const [field, it] of Object.entries(type)) requireType(it, `${path}.${field}`);
  }
}

// Returns why a value is not of a type. The definition in the cluster may be older than the plugin, or not the plugin's.
function mismatch(value, type, path) {
  if (typeof type === "string") {
    const all = alternatives(type).map((it) => types[it]);
    return all.some(([, matches]) => matches(value)) ? undefined : `${path}: must be ${all.map(([it]) => it).join(" or ")}`;
  }
  const isList = Array.isArray(type);
  if (!(isList ? Array.isArray(value) : isPlain(value))) return `${path}: must be ${isList ? "a list" : "an object"}`;
  if (isList) return first(value.map((item, index) => () => mismatch(item, type[0], `${path}[${index}]`)));
  return first(
    Object.entries(type).map(([declared, it]) => () => {
      const field = declared.replace("?", "");
      const isOptional = field !== declared || (typeof it === "string" && it.endsWith("?"));
      if (value[field] != null) return mismatch(value[field], it, `${path}.${field}`);
      return isOptional ? undefined : `${path}: missing field \`${field}\``;
    }),
  );
}

function first(checks) {
  for (const check of checks) {
    const found = check();
    if (found) return found;
  }
}

function refersTo({ apiVersion, kind, metadata }, object) {
  const { name, namespace } = object.metadata;
  return is(object, { apiVersion, kind }) && metadata.name === name && (metadata.namespace ?? namespace) === namespace;
}

function split(list, condition) {
  const groups = [[], []];
  for (const item of list) groups[condition(item) ? 0 : 1].push(item);
  return groups;
}

// Describes a value in a message.
function shown(value) {
  if (value === undefined) return "undefined";
  if (typeof value === "bigint") return `the BigInt ${value}`;
  if (value instanceof Date && Number.isNaN(value.getTime())) return "an invalid Date";
  if (typeof value === "function") return `the function ${value.name}`;
  if (typeof value === "symbol") return "a Symbol";
  if (value === null || typeof value !== "object") return typeof value === "string" ? JSON.stringify(value) : `${value}`;
  const name = value.constructor?.name;
  if (Array.isArray(value)) return "a list";
  return !name || name === "Object" ? "a plain object" : `a ${name}`;
}

// Formats a value for the log.
function textOf(value) {
  if (typeof value === "string") return value;
  if (value instanceof Error) return `${value}\n${placeOf(value)}`.trimEnd();
  if (value === null || typeof value !== "object") return typeof value === "bigint" ? `${value}n` : String(value);
  const within = [];
  const item = function (_, it) {
    while (within.length && within.at(-1) !== this) within.pop();
    if (typeof it === "bigint") return `${it}n`;
    if (it instanceof Error) return String(it);
    if (within.includes(it)) return "[circle]";
    const plain = it instanceof Map ? Object.fromEntries(it) : it instanceof Set ? [...it] : it;
    if (plain !== null && typeof plain === "object") within.push(plain);
    return plain;
  };
  try {
    return JSON.stringify(value, item);
  } catch (error) {
    return `${shown(value)} (${error})`;
  }
}

// Returns the lines of a stack that are the author's, with those of the causes; else where the author's function is.
function placeOf(error, author) {
  const own = (line) => line.includes("(/") && !/operator-plugin\.js|initializer\.js/.test(line);
  const stack = String(error?.stack ?? "").split("\n").filter(own).map((line) => line.replace("(/build/js/", "(/"));
  if (!stack.length && author?.fileName) {
    stack.push(`    at ${author.name} (${author.fileName.replace("/build/js/", "/")}:${author.lineNumber})`);
  }
  // An AggregateError has several.
  const causes = [error?.cause, ...(Array.isArray(error?.errors) ? error.errors : [])];
  stack.push(...causes.filter((cause) => cause !== undefined).map((cause) => `caused by ${textOf(cause)}`));
  return stack.join("\n");
}
