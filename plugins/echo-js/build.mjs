// Copies the sources to the folder build/js as the engine reads them: TypeScript without its types, and JSON as modules.
// All files keep their names, and all lines stay where they are.
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import * as modules from "node:module";
import { dirname, join } from "node:path";

if (!modules.stripTypeScriptTypes || !modules.registerHooks) {
  fail(`needs Node.js 22.15 or later, and ${process.execPath} is ${process.version}`);
}

function fail(message) {
  console.error(`build.mjs: ${message}`);
  process.exit(1);
}

function read(file) {
  const text = readFileSync(file, "utf8");
  try {
    if (file.endsWith(".json")) return `export default ${JSON.stringify(JSON.parse(text))};`;
    return file.endsWith(".ts") ? modules.stripTypeScriptTypes(text) : text;
  } catch (error) {
    // The stack begins with the line in the text.
    const line = /^:\d+/.exec(error.stack)?.[0] ?? "";
    return fail(`${file}${line}: ${error.message}`);
  }
}

for (const file of process.argv.slice(2)) {
  const copy = join("build/js", file);
  mkdirSync(dirname(copy), { recursive: true });
  const text = read(file);
  writeFileSync(copy, text);
  if (!file.endsWith(".ts")) continue;
  // TypeScript imports it as a .js file.
  const name = file.split("/").at(-1);
  const rest = /export\s+default|\bas\s+default\b/.test(text) ? ` export { default } from "./${name}";` : "";
  writeFileSync(copy.replace(/ts$/, "js"), `export * from "./${name}";${rest}`);
}
