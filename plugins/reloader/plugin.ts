// Reloader: a Deployment or StatefulSet starts new pods when one of its ConfigMaps or Secrets has changed.
import { Request, Response, kind, plugin } from "./operator-plugin.js";

const CONFIG_MAP = kind("v1", "ConfigMap");
const SECRET = kind("v1", "Secret");

interface Names {
  configMaps: Set<string>;
  secrets: Set<string>;
}

/** Returns the names of what a pod template mounts, or has in its environment. */
function namesIn(template: any): Names {
  const names: Names = { configMaps: new Set(), secrets: new Set() };
  const add = (set: Set<string>, name?: string) => name && set.add(name);
  const { containers = [], initContainers = [], volumes = [] } = template?.spec ?? {};
  for (const { env = [], envFrom = [] } of [...containers, ...initContainers]) {
    for (const { configMapRef, secretRef } of envFrom) {
      add(names.configMaps, configMapRef?.name);
      add(names.secrets, secretRef?.name);
    }
    for (const { valueFrom } of env) {
      add(names.configMaps, valueFrom?.configMapKeyRef?.name);
      add(names.secrets, valueFrom?.secretKeyRef?.name);
    }
  }
  for (const { configMap, secret, projected } of volumes) {
    for (const source of [{ configMap, secret: secret && { name: secret.secretName } }, ...(projected?.sources ?? [])]) {
      add(names.configMaps, source.configMap?.name);
      add(names.secrets, source.secret?.name);
    }
  }
  return names;
}

/** Returns a checksum of a text (FNV-1a): it tells changes, and keeps nothing secret. */
function checksum(text: string): string {
  let hash = 0x811c9dc5;
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193);
  return (hash >>> 0).toString(16).padStart(8, "0");
}

function reconcile(request: Request): Response {
  const { configMaps, secrets } = namesIn(request.spec.template);
  const needs = [
    { id: "configMaps", ...CONFIG_MAP, names: [...configMaps].sort() },
    { id: "secrets", ...SECRET, names: [...secrets].sort() },
  ].filter((need) => need.names.length > 0);
  const response = new Response().need(...needs);
  const found = needs.flatMap((need) => request.answer(need) ?? []);
  if (found.length === 0) return response;
  // What can be read in a pod template must not tell anything about a Secret, so its version stands for its contents.
  const parts = found.map(({ kind, metadata, data, binaryData }) =>
    kind === "Secret" ? [metadata.name, metadata.resourceVersion] : [metadata.name, data, binaryData],
  );
  const annotations = { "example.com/checksum": checksum(JSON.stringify(parts)) };
  return response.parent({ spec: { template: { metadata: { annotations } } } });
}

export const reconciler = plugin({
  name: "reloader",
  version: "0.1.0",
  parent: kind("apps/v1", "Deployment"),
  also: [kind("apps/v1", "StatefulSet")],
  reads: [CONFIG_MAP, SECRET],
  reconcile,
});
