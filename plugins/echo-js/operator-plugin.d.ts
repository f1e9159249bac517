// The types of operator-plugin.js.

export interface Kind {
  apiVersion: string;
  kind: string;
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

export interface Reference extends Kind {
  namespace?: string;
  name: string;
}

/** Objects to read: one by name, or those that a label selector picks. */
export interface Need extends Kind {
  id: string;
  namespace?: string;
  name?: string;
  labelSelector?: string;
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
  /** The host's clock in RFC 3339. `Date` has the same time. */
  readonly now: string;
  /** Nothing can be created in the namespace any more. */
  readonly namespaceTerminating: boolean;
  childrenOf(kind: Kind): KubernetesObject[];
  child(kind: Kind, name: string, namespace?: string): KubernetesObject | undefined;
  /** Returns the objects that the host read for a need; undefined when it has not read them yet. */
  answer(need: Need): KubernetesObject[] | undefined;
}

declare class Answer {
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
  generate(name: string, ...entries: { key: string; length: number; alphabet?: string }[]): this;
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
  validate?(request: Request<Spec>, oldParent?: KubernetesObject): { path: string; message: string }[] | void;
  /** Called while a parent is being deleted. The spec is not checked before. */
  cleanup?(request: Request<Spec>): Cleanup;
  /** Further versions of the kind, such as `v1beta1`. `reconcile` sees all objects in the version of `parent`. */
  versions?: string[];
  /** Returns an object in another version, such as `v1`. Throws `Invalid` if that cannot be. */
  convert?(object: KubernetesObject, version: string): object;
  /** Changes the spec of an object that is about to be stored, or returns another one. Called again, it must change nothing. */
  defaults?(spec: Spec, parent: KubernetesObject): Spec | void;
}): unknown;
