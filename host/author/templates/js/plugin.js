// The @KIND@ operator: runs an image in a Deployment with a number of replicas.
import { Response, kind, plugin } from "./operator-plugin.js";
import crd from "./crd.json" with { type: "json" };

const DEPLOYMENT = kind("apps/v1", "Deployment");

function reconcile(request) {
  const { name, spec } = request;
  const replicas = spec.replicas ?? 1;
  const labels = { "app.kubernetes.io/name": name };
  const ready = request.child(DEPLOYMENT, name)?.status?.readyReplicas ?? 0;
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

export const reconciler = plugin({
  name: "@NAME@",
  version: "0.1.0",
  parent: kind("@GROUP@/@VERSION@", "@KIND@"),
  makes: [DEPLOYMENT],
  crd,
  // The fields that the plugin reads; `?` marks those that may be missing.
  spec: { image: "string", replicas: "integer?" },
  reconcile,
});
