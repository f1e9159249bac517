// Copies the sources to the folder build/js, without the types. All lines stay where they are.
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { stripTypeScriptTypes } from "node:module";
import { basename, join } from "node:path";

const folder = "build/js";
mkdirSync(folder, { recursive: true });
for (const file of process.argv.slice(2)) {
  const name = join(folder, basename(file));
  if (file.endsWith(".ts")) writeFileSync(name.replace(/ts$/, "js"), stripTypeScriptTypes(readFileSync(file, "utf8")));
  else copyFileSync(file, name);
}
