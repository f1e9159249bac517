// The SDK of plugins in AssemblyScript: a plugin is a WASI command, which reads one call as JSON and writes its answer.
import { JSON } from "json-as";

// The version of the plugin contract that the records are of.
const CONTRACT = "1.0.0";

/** A kind as written in a manifest. */
@json
export class Kind {
  // fields of Kind: as in wit/types.wit, by plugins/records.py
  /** `v1` or `group/version`. */
  apiVersion: string = "";
  /** The kind, such as `Deployment`. */
  kind: string = "";
  // end of fields

  static of(apiVersion: string, kind: string): Kind {
    return { apiVersion, kind };
  }
}

/** Metadata of a child. */
@json
export class Metadata {
  name: string = "";
  @omitnull()
  labels: Map<string, string> | null = null;
  @omitnull()
  annotations: Map<string, string> | null = null;

  label(key: string, value: string): Metadata {
    if (!this.labels) this.labels = new Map<string, string>();
    this.labels!.set(key, value);
    return this;
  }
}

/** A value of the input, or none. */
export class Item {
  constructor(public value: JSON.Value | null) {}

  /** Returns the value at a path such as `status/phase`. */
  at(path: string): Item {
    let value = this.value;
    const steps = path.split("/");
    for (let i = 0; i < steps.length && value; i++) {
      value = value.type == JSON.Types.Object ? value.get<JSON.Obj>().get(steps[i]) : null;
    }
    return new Item(value);
  }

  /** Whether there is a value other than null. */
  get isThere(): bool {
    const value = this.value;
    return value != null && value.type != JSON.Types.Null;
  }

  get isString(): bool {
    return this.isThere && this.value!.type == JSON.Types.String;
  }

  /** Whether the value is a whole number. */
  get isInteger(): bool {
    return this.isThere && this.value!.type == JSON.Types.F64 && Math.floor(this.number) == this.number;
  }

  /** The string; empty if it is none. */
  get text(): string {
    return this.isString ? this.value!.get<string>() : "";
  }

  /** The number; 0 if it is none. */
  get number(): f64 {
    return this.isThere && this.value!.type == JSON.Types.F64 ? this.value!.get<f64>() : 0;
  }

  get isBool(): bool {
    return this.isThere && this.value!.type == JSON.Types.Bool;
  }

  get isList(): bool {
    return this.isThere && this.value!.type == JSON.Types.Array;
  }

  get isObject(): bool {
    return this.isThere && this.value!.type == JSON.Types.Object;
  }

  /** Whether the value is of a type as `Plugin.field` takes it. */
  isOf(type: string): bool {
    if (type == "string") return this.isString;
    if (type == "integer") return this.isInteger;
    if (type == "number") return this.isThere && this.value!.type == JSON.Types.F64;
    if (type == "boolean") return this.isBool;
    if (type == "list") return this.isList;
    if (type == "object") return this.isObject;
    throw new Error(`a field is of type "${type}", which is none of string, integer, number, boolean, list, object`);
  }

  get isTrue(): bool {
    return this.isThere && this.value!.type == JSON.Types.Bool && this.value!.get<bool>();
  }

  /** The items of a list. */
  get items(): Item[] {
    const items: Item[] = [];
    if (!this.isThere || this.value!.type != JSON.Types.Array) return items;
    const list = this.value!.get<JSON.Arr>();
    for (let i = 0; i < list.length; i++) items.push(new Item(list.at(i)));
    return items;
  }

  get name(): string {
    return this.at("metadata/name").text;
  }

  get namespace(): string {
    return this.at("metadata/namespace").text;
  }

  is(kind: Kind): bool {
    return this.at("kind").text == kind.kind && this.at("apiVersion").text == kind.apiVersion;
  }

  /** Whether the object is being deleted. */
  get isTerminating(): bool {
    return this.at("metadata/deletionTimestamp").isThere;
  }

  /** Returns the status of a condition: `True`, `False`, `Unknown`, or empty when it is missing. */
  condition(type: string): string {
    const conditions = this.at("status/conditions").items;
    for (let i = 0; i < conditions.length; i++) {
      if (conditions[i].at("type").text == type) return conditions[i].at("status").text;
    }
    return "";
  }

  /** Whether a Pod has ended permanently, such as an evicted one. */
  get isFinishedPod(): bool {
    const phase = this.at("status/phase").text;
    return phase == "Failed" || phase == "Succeeded";
  }

  /** Whether a Pod is ready. */
  get isReadyPod(): bool {
    const phase = this.at("status/phase").text;
    if (this.isTerminating || phase == "Failed") return false;
    if (phase == "Succeeded") {
      const policy = this.at("spec/restartPolicy").text;
      return policy == "OnFailure" || policy == "Never";
    }
    return this.condition("Ready") == "True";
  }
}

/** The input of one call. */
export class Request {
  /** The custom resource. */
  parent: Item;
  name: string;
  spec: Item;
  /** The objects in the cluster that the parent owns. */
  children: Item[];
  // plain fields of Request without traceparent: as in wit/types.wit, by plugins/records.py
  /** The host's clock in RFC 3339, UTC, in whole seconds that have passed. */
  get now(): string {
    return this.item.at("now").text;
  }
  /** Whether the parent's namespace is being deleted: nothing can be created there any more, and a `cleanup` must do without. */
  get namespaceTerminating(): bool {
    return this.item.at("namespaceTerminating").isTrue;
  }
  // end of fields

  constructor(private item: Item) {
    const parent = item.at("parent");
    this.parent = parent;
    this.name = parent.name;
    this.spec = parent.at("spec").isThere ? parent.at("spec") : new Item(JSON.parse<JSON.Value>("{}"));
    this.children = item.at("children").items;
  }

  childrenOf(kind: Kind): Item[] {
    const found: Item[] = [];
    for (let i = 0; i < this.children.length; i++) {
      if (this.children[i].is(kind)) found.push(this.children[i]);
    }
    return found;
  }

  /** Returns a child by kind and name, in the parent's namespace. */
  child(kind: Kind, name: string): Item | null {
    const found = this.childrenOf(kind);
    for (let i = 0; i < found.length; i++) {
      if (found[i].name == name && found[i].namespace == this.parent.namespace) return found[i];
    }
    return null;
  }

  /** Returns the objects that the host read for a need; null when it has not read them yet. */
  answer(id: string): Item[] | null {
    const related = this.item.at("related").items;
    for (let i = 0; i < related.length; i++) {
      if (related[i].at("id").text == id) return related[i].at("objects").items;
    }
    return null;
  }
}

@json
class Reference {
  // fields of ObjectRef: as in wit/types.wit, by plugins/records.py
  /** `v1` or `group/version`. */
  apiVersion: string = "";
  /** The kind. */
  kind: string = "";
  /** Absent: the parent's own namespace, or none for a cluster-scoped kind. */
  @omitnull()
  namespace: string | null = null;
  /** The object's name. */
  name: string = "";
  // end of fields
}

@json
class Condition {
  // fields of Condition: as in wit/types.wit, by plugins/records.py
  /** CamelCase, such as `Ready`. */
  type: string = "";
  /** `True`, `False` or `Unknown`. */
  status: string = "";
  /** CamelCase, for machines. */
  reason: string = "";
  /** A sentence, for people. */
  message: string = "";
  // end of fields
}

@json
class Event {
  // fields of Event: as in wit/types.wit, by plugins/records.py
  /** `Normal` or `Warning`. */
  type: string = "";
  /** CamelCase, such as `ScaledDown`. */
  reason: string = "";
  /** A sentence, for people. */
  message: string = "";
  // end of fields
}

/** Objects to read: by name, or those that a label selector picks, in one namespace or in several. */
@json
export class Need {
  // fields of Need: as in wit/types.wit, by plugins/records.py
  /** Chosen by the plugin, unique in the response. */
  id: string = "";
  /** `v1` or `group/version`. */
  apiVersion: string = "";
  /** The kind. */
  kind: string = "";
  /** Absent: the parent's own namespace, or none for a cluster-scoped kind. `*`: every namespace that the controller may read. */
  @omitnull()
  namespace: string | null = null;
  /** In place of `namespace`: the labels of the namespaces, as in `kubectl get -l`. Those count that the controller may read. */
  @omitnull()
  namespaceSelector: string | null = null;
  /** Absent: every object that the selector picks. */
  @omitnull()
  name: string | null = null;
  /** In place of `name`: several. Empty: every object that the selector picks. */
  names: string[] = [];
  /** As in `kubectl get -l`. */
  @omitnull()
  labelSelector: string | null = null;
  // end of fields
}

/** A value of a generated Secret: its key, and how many characters it has, letters and digits or those of the alphabet. */
@json
export class GeneratedValue {
  // fields of GeneratedValue: as in wit/types.wit, by plugins/records.py
  /** The key in the Secret's data. */
  key: string = "";
  /** How many characters, 8 to 1024. */
  length: i32 = 0;
  /** The characters to draw from, each once, at least 2; absent: letters and digits. */
  @omitnull()
  alphabet: string | null = null;
  // end of fields
}

@json
class GeneratedSecret {
  // fields of GeneratedSecret: as in wit/types.wit, by plugins/records.py
  /** The Secret's name; its namespace is the parent's. */
  name: string = "";
  /** The keys that the Secret must contain. */
  entries: GeneratedValue[] = [];
  // end of fields
}

/** What should be, or why there is no answer. The host deletes every child of the parent that it does not name. */
export class Response {
  private failure: string = "";
  private children: string[] = [];
  private kept: Reference[] = [];
  private fields: Map<string, string> = new Map<string, string>();

  /** Sets a field of the answer, such as one that has no method here, as JSON. */
  set(field: string, json: string): Response {
    requireJson(json, field);
    this.fields.set(field, json);
    return this;
  }

  /** Adds an item to a list of the answer. */
  private add<T>(field: string, item: T): Response {
    const text = JSON.stringify<T>(item);
    return this.set(field, this.fields.has(field) ? this.fields.get(field).slice(0, -1) + `,${text}]` : `[${text}]`);
  }

  /** Fails: the user must change the resource. Nothing is retried until it changes. */
  static invalid(message: string): Response {
    requireText(message, "the message of invalid");
    const response = new Response();
    response.failure = `{"invalid":{"message":${JSON.stringify(message)}}}`;
    return response;
  }

  /** Fails: something does not exist yet. The host retries, after this time or its own back-off. */
  static retry(message: string, afterMs: i64 = -1): Response {
    requireText(message, "the message of retry");
    const response = new Response();
    const after = afterMs < 0 ? "" : `,"afterMs":${afterMs}`;
    response.failure = `{"retry":{"message":${JSON.stringify(message)}${after}}}`;
    return response;
  }

  /** Adds a child that should exist, as a complete object of a class with `@json`. */
  child<T>(object: T): Response {
    const text = JSON.stringify<T>(object);
    requireJson(text, "a child");
    const child = new Item(JSON.parse<JSON.Value>(text));
    requireText(child.at("apiVersion").text, "the apiVersion of a child");
    requireText(child.at("kind").text, "the kind of a child");
    requireText(child.name, `the metadata.name of a ${child.at("kind").text}`);
    this.children.push(text);
    return this;
  }

  /** Keeps a child as it is: neither applied nor deleted. */
  keep(child: Item): Response {
    const namespace = child.namespace;
    this.kept.push({
      apiVersion: child.at("apiVersion").text,
      kind: child.at("kind").text,
      namespace: namespace == "" ? null : namespace,
      name: child.name,
    });
    return this;
  }

  /** Adds a Secret whose values the host generates once. A plugin must not make passwords: its random numbers can be predicted. */
  generate(name: string, entries: GeneratedValue[]): Response {
    requireText(name, "the name of a generated Secret");
    for (let i = 0; i < entries.length; i++) requireText(entries[i].key, "the key of a generated value");
    const secret: GeneratedSecret = { name, entries };
    return this.add("generate", secret);
  }

  /** Sets the parent's whole status, but for what the host writes. */
  status<T>(status: T): Response {
    return this.set("status", objectText(JSON.stringify<T>(status), "the status"));
  }

  /** Sets the fields that the parent should have: for a Controller that decorates, below the paths of its `fields`. */
  parent<T>(fields: T): Response {
    return this.set("parent", objectText(JSON.stringify<T>(fields), "the parent"));
  }

  /** Adds a condition, with the status `True`, `False` or `Unknown`. `Ready` replaces the one that the host derives. */
  condition(type: string, status: string, reason: string, message: string): Response {
    requireText(type, "the type of a condition");
    if (status != "True" && status != "False" && status != "Unknown") {
      throw new Error(`the status of the condition ${type} must be True, False or Unknown (it is ${status})`);
    }
    requireText(reason, `the reason of the condition ${type}`);
    const condition: Condition = { type, status, reason, message };
    return this.add("conditions", condition);
  }

  /** Adds an Event on the parent, of the type `Normal` or `Warning`. */
  event(type: string, reason: string, message: string): Response {
    if (type != "Normal" && type != "Warning") {
      throw new Error(`the type of an Event must be Normal or Warning (it is ${type})`);
    }
    requireText(reason, "the reason of an Event");
    requireText(message, "the message of an Event");
    const event: Event = { type, reason, message };
    return this.add("events", event);
  }

  /** Adds objects to read and to watch. */
  need(need: Need): Response {
    requireText(need.id, "the id of a need");
    requireText(need.kind, "the kind of a need");
    return this.add("needs", need);
  }

  /** Requests another call after this time even if nothing changes. */
  requeueAfterMs(time: i64): Response {
    if (time < 0) throw new Error(`the time of requeueAfterMs must not be negative (it is ${time})`);
    return this.set("requeueAfterMs", time.toString());
  }

  /** Requests another call at this time of the host's clock, such as `2026-01-02T03:04:05Z`, even if nothing changes. */
  requeueAt(time: string): Response {
    return this.set("requeueAt", JSON.stringify(time));
  }

  /** Returns the output; `done` is for a cleanup. */
  output(request: Request, done: bool): string {
    if (this.failure != "") return `{"failure":${this.failure}}`;
    const children: string[] = [];
    for (let i = 0; i < this.children.length; i++) {
      const terminating = terminatingOne(request, this.children[i]);
      // The host applies a child again when it is gone.
      if (terminating) this.keep(terminating);
      else children.push(this.children[i]);
    }
    const fields = [`"done":${done}`, `"children":[${children.join(",")}]`, `"keep":${JSON.stringify(this.kept)}`];
    const names = this.fields.keys();
    for (let i = 0; i < names.length; i++) fields.push(`"${names[i]}":${this.fields.get(names[i])}`);
    return `{"response":{${fields.join(",")}}}`;
  }
}

function requireText(text: string, what: string): void {
  if (text == "") throw new Error(`${what} must be a text that is not empty`);
}

function objectText(text: string, what: string): string {
  requireJson(text, what);
  if (!text.startsWith("{")) throw new Error(`${what} must be an object (it is ${text})`);
  return text;
}

/** Finds numbers that JSON does not have: they stand between its texts. */
function requireJson(text: string, what: string): void {
  let isText = false;
  for (let i = 0; i < text.length; i++) {
    const code = text.charCodeAt(i);
    if (isText && code == 0x5c) i++;
    else if (code == 0x22) isText = !isText;
    else if (!isText && (code == 0x4e || code == 0x49)) {
      const before = text.substring(max(0, i - 40), i);
      throw new Error(`${what} has a number that JSON does not have, after ${before}`);
    }
  }
}

function terminatingOne(request: Request, child: string): Item | null {
  const wanted = new Item(JSON.parse<JSON.Value>(child));
  const kind = Kind.of(wanted.at("apiVersion").text, wanted.at("kind").text);
  const existing = request.child(kind, wanted.name);
  return existing && existing.isTerminating ? existing : null;
}

/** What the user must change in a resource: where, such as `spec.rules[0].host`, and what. */
@json
export class FieldError {
  // fields of FieldError: as in wit/types.wit, by plugins/records.py
  /** Where, such as `spec.rules[0].host`. */
  path: string = "";
  /** What is wrong and what to change, such as `must be at most 10`. */
  message: string = "";
  // end of fields
}

/** What a plugin says about itself, and its functions. */
export class Plugin {
  reads: Kind[] = [];
  /** Other kinds that it decorates in the same way. */
  also: Kind[] = [];
  /** Returns what to do while a parent is being deleted; null when there is nothing left to do. */
  cleanup: ((request: Request) => Response | null) | null = null;
  /** Returns what the user must change. The request has the parent alone; `old` is the stored parent that it would replace. */
  validate: ((request: Request, old: Item | null) => FieldError[]) | null = null;

  constructor(
    public name: string,
    public version: string,
    public parent: Kind,
    public makes: Kind[],
    /** The CustomResourceDefinition as JSON. */
    public crd: () => string,
    public reconcile: (request: Request) => Response,
  ) {}

  private fields: string[][] = [];

  /**
   * Declares a field of the spec, by a path such as `storage/size`, which is checked before `reconcile` is called: a
   * string, integer, number, boolean, list or object, several as in `string|integer`, with a `?` if it may be missing.
   */
  field(path: string, type: string): Plugin {
    this.fields.push([path, type]);
    return this;
  }

  /** Returns what is wrong with a spec; empty if nothing is. The definition in the cluster may be older than the plugin. */
  private mismatch(spec: Item): string {
    for (let i = 0; i < this.fields.length; i++) {
      const path = this.fields[i][0];
      const types = this.fields[i][1].replace("?", "").split("|");
      const end = path.lastIndexOf("/");
      const within = end < 0 ? spec : spec.at(path.substring(0, end));
      const name = path.substring(end + 1);
      const parent = end < 0 ? "spec" : "spec." + path.substring(0, end).replaceAll("/", ".");
      if (!within.isThere) continue;
      if (!within.isObject) return `${parent}: must be an object`;
      const value = within.at(name);
      if (!value.isThere) {
        if (this.fields[i][1].endsWith("?")) continue;
        return `${parent}: missing field \`${name}\``;
      }
      let matches = false;
      for (let j = 0; j < types.length; j++) matches = matches || value.isOf(types[j]);
      if (!matches) return `${parent}.${name}: must be of the type ${types.join(" or ")}`;
    }
    return "";
  }

  private describe(): string {
    const fields = [
      `"contract":"${CONTRACT}"`,
      `"name":${JSON.stringify(this.name)}`,
      `"version":${JSON.stringify(this.version)}`,
      `"parent":${JSON.stringify(this.parent)}`,
      `"makes":${JSON.stringify(this.makes)}`,
      `"reads":${JSON.stringify(this.reads)}`,
      `"also":${JSON.stringify(this.also)}`,
      `"finalizer":${this.cleanup != null}`,
      `"validates":${this.validate != null}`,
      `"crd":${this.crd()}`,
    ];
    return `{"description":{${fields.join(",")}}}`;
  }

  /** Answers the call on standard input. */
  run(): void {
    const call = new Item(JSON.parse<JSON.Value>(input()));
    const name = call.at("call").text;
    if (name == "describe") {
      process.stdout.write(this.describe());
      return;
    }
    const validate = this.validate;
    if (name == "validate") {
      const old = call.at("oldParent");
      const alone = new Request(call);
      const wrong = this.mismatch(alone.spec);
      let errors: FieldError[] = [];
      if (wrong != "") errors.push({ path: wrong.split(": ")[0], message: wrong.slice(wrong.indexOf(": ") + 2) });
      else if (validate) errors = validate(alone, old.isThere ? old : null);
      process.stdout.write(`{"validated":${JSON.stringify(errors)}}`);
      return;
    }
    const request = new Request(call.at("request"));
    if (name == "reconcile") {
      const wrong = this.mismatch(request.spec);
      const response = wrong == "" ? this.reconcile(request) : Response.invalid(wrong);
      if (!changetype<usize>(response)) throw new Error("reconcile must return a Response (it returned null)");
      process.stdout.write(response.output(request, false));
      return;
    }
    const cleanup = this.cleanup;
    const waiting = cleanup ? cleanup(request) : null;
    const response = waiting ? waiting : new Response();
    process.stdout.write(response.output(request, waiting == null));
  }
}

/** Writes a line to the host's log. */
export function log(message: string): void {
  process.stderr.write(message + "\n");
}

function input(): string {
  const part = new ArrayBuffer(65536);
  let all = new Uint8Array(0);
  for (let count = process.stdin.read(part); count > 0; count = process.stdin.read(part)) {
    const longer = new Uint8Array(all.length + count);
    longer.set(all);
    longer.set(Uint8Array.wrap(part, 0, count), all.length);
    all = longer;
  }
  return String.UTF8.decode(all.buffer);
}
