// The types of operator-plugin.js.

export interface Kind {
  // fields of Kind: as in wit/types.wit, by plugins/records.py
  /** `v1` or `group/version`. */
  apiVersion: string;
  /** The kind, such as `Deployment`. */
  kind: string;
  // end of fields
}

export interface Metadata {
  name: string;
  namespace?: string;
  labels?: Record<string, string>;
  annotations?: Record<string, string>;
  deletionTimestamp?: string;
  [field: string]: unknown;
}

/** An object of the cluster. */
export interface KubernetesObject extends Kind {
  metadata: Metadata;
  spec?: any;
  status?: any;
  [field: string]: unknown;
}

export interface Reference {
  // fields of ObjectRef: as in wit/types.wit, by plugins/records.py
  /** `v1` or `group/version`. */
  apiVersion: string;
  /** The kind. */
  kind: string;
  /** Absent: the parent's own namespace, or none for a cluster-scoped kind. */
  namespace?: string;
  /** The object's name. */
  name: string;
  // end of fields
}

/** Objects to read: by name, or those that a label selector picks, in one namespace or in several. */
export interface Need {
  // fields of Need: as in wit/types.wit, by plugins/records.py
  /** Chosen by the plugin, unique in the response. */
  id: string;
  /** `v1` or `group/version`. */
  apiVersion: string;
  /** The kind. */
  kind: string;
  /** Absent: the parent's own namespace, or none for a cluster-scoped kind. `*`: every namespace that the controller may read. */
  namespace?: string;
  /** In place of `namespace`: the labels of the namespaces, as in `kubectl get -l`. Those count that the controller may read. */
  namespaceSelector?: string;
  /** Absent: every object that the selector picks. */
  name?: string;
  /** In place of `name`: several. Empty: every object that the selector picks. */
  names?: string[];
  /** As in `kubectl get -l`. */
  labelSelector?: string;
  // end of fields
}

/** A value of a generated Secret. */
export interface GeneratedValue {
  // fields of GeneratedValue: as in wit/types.wit, by plugins/records.py
  /** The key in the Secret's data. */
  key: string;
  /** How many characters, 8 to 1024. */
  length: number;
  /** The characters to draw from, each once, at least 2; absent: letters and digits. */
  alphabet?: string;
  // end of fields
}

/** Something that the user must change. */
export interface FieldError {
  // fields of FieldError: as in wit/types.wit, by plugins/records.py
  /** Where, such as `spec.rules[0].host`. */
  path: string;
  /** What is wrong and what to change, such as `must be at most 10`. */
  message: string;
  // end of fields
}

type Level = "trace" | "debug" | "info" | "warn" | "error";
/** Writes lines to the host's log, where they get the parent's reference and the plugin's digest. */
export const log: Record<Level, (...values: unknown[]) => void>;

declare class Failure extends Error {
  /** Sets the parent's whole status; without it, the status stays as it is. */
  status(status: object): this;
  /** Adds a condition to those of the parent. `Ready` has no effect: the host's reports the failure. */
  condition(type: string, status: boolean | null, reason: string, message: string): this;
}

/** To throw: the user must change the resource. Nothing is retried until it changes. */
export class Invalid extends Failure {
  constructor(message: string, reason?: string);
}

/** To throw: something does not exist yet, or failed temporarily. The host retries, after this time or its back-off. */
export class Retry extends Failure {
  constructor(message: string, afterMs?: number);
}

export function kind(apiVersion: string, kind: string): Kind;
/** Refers to an object in the parent's namespace, or to one that exists. */
export function reference(kind: Kind, name: string): Reference;
export function reference(object: KubernetesObject): Reference;
export function isTerminating(object: KubernetesObject): boolean;
export function conditionOf(object: KubernetesObject, type: string): "True" | "False" | "Unknown" | undefined;
export function isFinishedPod(pod: KubernetesObject): boolean;
export function isReadyPod(pod: KubernetesObject): boolean;

/** The input of one call. */
export class Request<Spec = any> {
  readonly parent: KubernetesObject;
  readonly name: string;
  /** Undefined for a cluster-scoped parent. */
  readonly namespace?: string;
  readonly spec: Spec;
  /** The objects in the cluster that the parent owns. */
  readonly children: KubernetesObject[];
  // plain fields of Request without related, traceparent: as in wit/types.wit, by plugins/records.py
  /** The host's clock in RFC 3339, UTC, in whole seconds that have passed. */
  readonly now: string;
  /** Whether the parent's namespace is being deleted: nothing can be created there any more, and a `cleanup` must do without. */
  readonly namespaceTerminating?: boolean;
  // end of fields
  childrenOf(kind: Kind): KubernetesObject[];
  child(kind: Kind, name: string, namespace?: string): KubernetesObject | undefined;
  /** Returns the objects that the host read for a need; undefined when it has not read them yet. */
  answer(need: Need): KubernetesObject[] | undefined;
}

declare class Answer {
  /** What the answer has; a method sets most of it. */
  readonly fields: {
    // plain fields of Response: as in wit/types.wit, by plugins/records.py
    /** For `cleanup`, which is called again until it says so: the parent may go, and the host takes its finalizer off. */
    done?: boolean;
    /** Reconcile again after so many milliseconds, even when nothing changes. */
    requeueAfterMs?: number;
    /** Reconcile again when the host's clock has reached this time, in RFC 3339, even when nothing changes. A time that is not after `now` has no effect. With both, the earlier one counts. */
    requeueAt?: string;
    // end of fields
  };
  child(...objects: KubernetesObject[]): this;
  /** Adds a condition, whose status null is `Unknown`. `Ready` replaces the one that the host derives. */
  condition(type: string, status: boolean | null, reason: string, message: string): this;
  event(type: "normal" | "warning", reason: string, message: string): this;
  need(...needs: Need[]): this;
  /** Requests another call at this time of the host's clock: a Date, or a text in RFC 3339. */
  requeueAt(time: Date | string): this;
  requeueAfterMs(time: number): this;
}

/** What should be. The host deletes every child of the parent that the response does not name. */
export class Response extends Answer {
  constructor(status?: object);
  keep(...children: (Reference | KubernetesObject)[]): this;
  /** Sets the fields that the parent should have: for a Controller that decorates, below the paths of its `fields`. */
  parent(fields: object): this;
  generate(name: string, ...entries: GeneratedValue[]): this;
}

/** What a cleanup answers: with `done`, the parent may go. */
export class Cleanup extends Answer {
  constructor(done?: boolean, status?: object);
}

type Basic = "string" | "integer" | "number" | "boolean" | "array" | "object";
/** One of the types of JSON, several, as in `"string|integer"`, or fields, or a list of items of a type; `?` marks fields that may be missing. */
type FieldType = Basic | `${Basic}?` | `${Basic}|${Basic}` | `${Basic}|${Basic}?` | [FieldType] | { [field: string]: FieldType };

/** Returns the export of a plugin from its description and functions. */
export function plugin<Spec = any>(options: {
  name: string;
  version: string;
  parent: Kind;
  /** Other kinds that it decorates in the same way. */
  also?: Kind[];
  makes?: Kind[];
  reads?: Kind[];
  crd?: object;
  /**
   * The fields of the spec that the plugin reads, checked before `reconcile` is called: `{ image: "string", replicas:
   * "integer?", "storage?": { size: "string|integer" }, ports: ["integer"] }`.
   */
  spec?: { [field: string]: FieldType };
  reconcile(request: Request<Spec>): Response;
  /**
   * Returns what the user must change in a resource, beyond what the schema can say. The request has the resource alone.
   * `oldParent` is the stored one when the webhook asks whether it may be replaced.
   */
  validate?(request: Request<Spec>, oldParent?: KubernetesObject): FieldError[] | void;
  /** Called while a parent is being deleted. The spec is not checked before. */
  cleanup?(request: Request<Spec>): Cleanup;
  /** Further versions of the kind, such as `v1beta1`. `reconcile` sees all objects in the version of `parent`. */
  versions?: string[];
  /** Returns an object in another version, such as `v1`. Throws `Invalid` if that cannot be. */
  convert?(object: KubernetesObject, version: string): object;
  /** Changes the spec of an object that is about to be stored, or returns another one. Called again, it must change nothing. */
  defaults?(spec: Spec, parent: KubernetesObject): Spec | void;
}): unknown;
