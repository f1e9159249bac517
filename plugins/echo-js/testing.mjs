// Calls a plugin in Node.js, for tests with `node --test`: what the host provides to a plugin is replaced here.
import modules from "node:module";
import { existsSync, readFileSync } from "node:fs";
import { resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const provided = {
  "operator-host:plugin/logging": "export const log = (level, message) => process.stderr.write(`${level}: ${message}\\n`);",
  // The numbers are the same in each run.
  "wasi:random/insecure":
    "let n = 1n; export const getInsecureRandomU64 = () => (n = BigInt.asUintN(64, n * 6364136223846793005n + 1n));",
};

modules.registerHooks({
  resolve(specifier, context, next) {
    const source = provided[specifier.split("@")[0]];
    if (source) return { url: `data:text/javascript,${encodeURIComponent(source)}`, shortCircuit: true };
    // TypeScript imports a .ts file as a .js file.
    const url = specifier.startsWith(".") ? new URL(specifier, context.parentURL) : undefined;
    const isTypeScript = url?.pathname.endsWith(".js") && !existsSync(url) && existsSync(new URL(url.href.replace(/js$/, "ts")));
    return next(isTypeScript ? specifier.replace(/js$/, "ts") : specifier, context);
  },
  load(url, context, next) {
    if (!url.endsWith(".ts")) return next(url, context);
    const source = modules.stripTypeScriptTypes(readFileSync(fileURLToPath(url), "utf8"));
    return { format: "module", source, shortCircuit: true };
  },
});

const text = (objects = []) => objects.map((object) => JSON.stringify(object));
const parsed = (value) => (value == null ? value : JSON.parse(value));

/**
 * Loads a plugin from its file, relative to the current folder.
 *
 * `reconcile(parent, rest)` and `cleanup` return the answer with its objects. `rest` is the rest of the request, as far as it matters: `children`,
 * `related` by the id of the need, `now` and so on. `convert` and `default` return objects, and `validate(parent, oldParent)` a list of `{ path, message }`. When the plugin throws `Invalid` or `Retry`, they throw an error with the fields of the
 * failure, such as `{ tag: "invalid", message, reason }`.
 */
export async function load(file) {
  const { reconciler } = await import(pathToFileURL(resolve(file)));
  const call = (run) => {
    try {
      return run();
    } catch (failure) {
      if (failure instanceof Error) throw failure;
      const { status, ...rest } = failure.val;
      throw Object.assign(new Error(rest.message), { tag: failure.tag, ...rest, status: parsed(status) });
    }
  };
  const ask = (name) => (parent, { children, related = {}, ...plain } = {}) => {
    const request = {
      now: "2026-01-01T00:00:00Z",
      ...plain,
      parent: JSON.stringify(parent),
      children: text(children),
      related: Object.entries(related).map(([id, objects]) => ({ id, objects: text(objects) })),
    };
    const answer = call(() => reconciler[name](request));
    return { ...answer, children: answer.children.map((child) => JSON.parse(child)), status: parsed(answer.status) };
  };
  return {
    describe: () => call(() => reconciler.describe()),
    validate: (parent, oldParent) =>
      call(() => reconciler.validate(JSON.stringify(parent), oldParent && JSON.stringify(oldParent))),
    reconcile: ask("reconcile"),
    cleanup: ask("cleanup"),
    convert: (apiVersion, ...objects) =>
      call(() => reconciler.convert(apiVersion, text(objects))).map(({ tag, val }) => (tag === "ok" ? JSON.parse(val) : new Error(val))),
    default: (parent) => JSON.parse(call(() => reconciler.default(JSON.stringify(parent)))),
  };
}
