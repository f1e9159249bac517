// The @KIND@ operator: runs an image in a Deployment with a number of replicas.
import { Response, kind, plugin, type Request } from "./operator-plugin.js";
import crd from "./crd.json" with { type: "json" };

interface Spec {
  image: string;
  replicas?: number;
}

const DEPLOYMENT = kind("apps/v1", "Deployment");

function reconcile(request: Request<Spec>): Response {
  const { name, spec } = request;
  const replicas = spec.replicas ?? 1;
  const labels = { "app.kubernetes.io/name": name };
  const ready: number = request.child(DEPLOYMENT, name)?.status?.readyReplicas ?? 0;
  const isReady = ready === replicas;
  return new Response({ readyReplicas: ready })
    .child({
      ...DEPLOYMENT,
      metadata: { name, labels },
      spec: {
        replicas,
        selector: { matchLabels: labels },
        template: {
          metadata: { labels },
          spec: { containers: [{ name: "main", image: spec.image }] },
        },
      },
    })
    .condition("Ready", isReady, isReady ? "ReplicasReady" : "ReplicasNotReady", `${ready}/${replicas} replicas ready`);
}

export const reconciler = plugin<Spec>({
  name: "@NAME@",
  version: "0.1.0",
  parent: kind("@GROUP@/@VERSION@", "@KIND@"),
  makes: [DEPLOYMENT],
  crd,
  // Checked before `reconcile` is called; `?` marks the fields that may be missing.
  spec: { image: "string", replicas: "integer?" },
  reconcile,
});
