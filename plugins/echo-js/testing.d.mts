// The types of testing.mjs.
import type { FieldError, KubernetesObject, Request } from "./operator-plugin.js";

type Rest = Partial<Omit<Request, "parent" | "name" | "namespace" | "spec" | "childrenOf" | "child" | "answer">> & {
  /** The objects that the host read, by the `id` of the need. */
  related?: Record<string, KubernetesObject[]>;
};

/**
 * Loads a plugin from its file, relative to the current folder. When the plugin throws `Invalid` or `Retry`, the functions
 * throw an error with the fields of the failure, such as `{ tag: "invalid", message, reason }`.
 */
export function load(file: string): Promise<{
  describe(): any;
  /** Returns what the user must change. */
  validate(parent: object, oldParent?: object): FieldError[];
  /** Returns the answer with its objects, such as `children` and `status`. */
  reconcile(parent: object, rest?: Rest): any;
  cleanup(parent: object, rest?: Rest): any;
  convert(apiVersion: string, ...objects: object[]): any[];
  default(parent: object): any;
}>;
