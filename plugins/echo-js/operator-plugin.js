// The SDK of plugins in JavaScript and TypeScript: it hides the records of the plugin contract, in which objects are text.
// operator-plugin.d.ts has the types, for editors and for TypeScript.
import { log as write } from "operator-host:plugin/logging@0.2.0";

const text = (values) => values.map((value) => (typeof value === "string" ? value : JSON.stringify(value))).join(" ");

/** Writes lines to the host's log, where they get the parent's reference and the plugin's digest. */
export const log = Object.fromEntries(
  ["trace", "debug", "info", "warn", "error"].map((level) => [level, (...values) => write(level, text(values))]),
);
globalThis.console = { ...log, log: log.info };

/** To throw: the user must change the resource. Nothing is retried until it changes. */
export class Invalid extends Error {
  constructor(message, reason) {
    super(message);
    this.failure = { tag: "invalid", val: { message, reason } };
  }
}

/** To throw: something does not exist yet, or failed temporarily. The host retries, after this time or its back-off. */
export class Retry extends Error {
  constructor(message, afterMs) {
    super(message);
    this.failure = { tag: "retry", val: { message, afterMs: unsigned(afterMs) } };
  }
}

/** A kind as written in a manifest. */
export const kind = (apiVersion, kind) => ({ apiVersion, kind });

/** Refers to an object in the parent's namespace, or to one that exists. */
export const reference = ({ apiVersion, kind, metadata }, name) =>
  metadata
    ? { apiVersion, kind, namespace: metadata.namespace, name: metadata.name }
    : { apiVersion, kind, name };

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
  constructor(request) {
    /** The custom resource. */
    this.parent = JSON.parse(request.parent);
    this.name = this.parent.metadata.name;
    /** Undefined for a cluster-scoped parent. */
    this.namespace = this.parent.metadata.namespace;
    this.spec = this.parent.spec ?? {};
    /** The objects in the cluster that the parent owns. */
    this.children = request.children.map((child) => JSON.parse(child));
    /** The host's clock in RFC 3339. `Date` has the same time. */
    this.now = request.now;
    /** Nothing can be created in the namespace any more. */
    this.namespaceTerminating = request.namespaceTerminating;
    this.related = new Map(request.related.map(({ id, objects }) => [id, objects.map((it) => JSON.parse(it))]));
  }

  /** Returns the children of a kind. */
  childrenOf(kind) {
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

// What both answers have.
class Answer {
  constructor(status) {
    this.fields = { children: [], conditions: [], events: [], needs: [], status: status && JSON.stringify(status) };
  }

  /** Adds children that should exist, each as a complete object. */
  child(...objects) {
    this.fields.children.push(...objects);
    return this;
  }

  /** Adds a condition. `Ready` replaces the one that the host derives. */
  condition(type, status, reason, message) {
    const word = typeof status === "boolean" ? (status ? "true" : "false") : "unknown";
    this.fields.conditions.push({ type, status: word, reason, message });
    return this;
  }

  /** Adds an Event on the parent: type `normal` or `warning`. */
  event(type, reason, message) {
    this.fields.events.push({ type, reason, message });
    return this;
  }

  /** Adds objects to read and to watch: `{ id, apiVersion, kind, namespace, name, labelSelector }`. */
  need(...needs) {
    this.fields.needs.push(...needs);
    return this;
  }

  /** Requests another call after this time even if nothing changes. */
  requeueAfterMs(time) {
    this.fields.requeueAfterMs = unsigned(time);
    return this;
  }
}

/** What should be. The host deletes every child of the parent that the response does not name. */
export class Response extends Answer {
  constructor(status) {
    super(status);
    Object.assign(this.fields, { keep: [], generate: [] });
  }

  /** Keeps children as they are: neither applied nor deleted. Takes references and objects. */
  keep(...children) {
    this.fields.keep.push(...children.map((child) => (child.metadata ? reference(child) : child)));
    return this;
  }

  /** Adds a Secret whose values the host generates once: `[{ key, length, alphabet }]`. */
  generate(name, ...entries) {
    this.fields.generate.push({ name, entries });
    return this;
  }
}

/** What a cleanup answers: with `done`, the parent may go. */
export class Cleanup extends Answer {
  constructor(done = true, status) {
    super(status);
    this.fields.done = done;
  }
}

/** Returns the export of a plugin from its description and functions. */
export function plugin({ name, version, parent, makes = [], reads = [], crd, spec = {}, reconcile, cleanup }) {
  const answer = (operator, request) => {
    try {
      const read = new Request(request);
      check(spec, read.spec);
      const { fields } = operator(read);
      const terminating = read.children.filter(isTerminating);
      const [waits, applied] = split(fields.children, (child) => terminating.find((it) => refersTo(child, it)));
      // The host applies a child again when it is gone.
      fields.keep?.push(...waits.map((child) => reference(terminating.find((it) => refersTo(child, it)))));
      return { ...fields, children: applied.map((child) => JSON.stringify(child)) };
    } catch (error) {
      if (error?.failure) throw error.failure;
      // The host shows the last error in the log of a call that failed.
      log.error(`${error}\n${place(error?.stack)}`);
      throw error;
    }
  };
  return {
    describe: () => ({
      name,
      version,
      parent,
      makes,
      reads,
      finalizer: cleanup !== undefined,
      crd: crd && JSON.stringify(crd),
    }),
    reconcile: (request) => answer(reconcile, request),
    cleanup: (request) => answer(cleanup ?? (() => new Cleanup()), request),
  };
}

const types = {
  string: ["a string", (value) => typeof value === "string"],
  integer: ["an integer", Number.isInteger],
  number: ["a number", (value) => typeof value === "number"],
  boolean: ["true or false", (value) => typeof value === "boolean"],
  array: ["a list", Array.isArray],
  object: ["an object", (value) => typeof value === "object" && !Array.isArray(value)],
};

// The definition in the cluster may be older than the plugin, or not the plugin's.
function check(fields, spec) {
  for (const [field, type] of Object.entries(fields)) {
    const [expected, matches] = types[type.replace("?", "")];
    if (spec[field] == null) {
      if (!type.endsWith("?")) throw new Invalid(`spec: missing field \`${field}\``);
    } else if (!matches(spec[field])) {
      throw new Invalid(`spec: \`${field}\` must be ${expected}`);
    }
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

// The lines of a stack that are the author's.
function place(stack = "") {
  const own = (line) => line.includes(".js:") && !/operator-plugin\.js|initializer\.js/.test(line);
  return stack.split("\n").filter(own).join("\n");
}

// A u64 of the contract.
const unsigned = (value) => (value === undefined ? undefined : BigInt(Math.round(value)));
