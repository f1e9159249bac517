// Echo: runs a number of pods of one image. The same operator as ../echo, in JavaScript.
import { Response, isFinishedPod, isReadyPod, kind, plugin } from "./operator-plugin.js";
import crd from "./crd.json" with { type: "json" };

const POD = kind("v1", "Pod");

function reconcile(request) {
  const { name, spec } = request;
  const pods = request.childrenOf(POD);
  const response = new Response({
    currentReplicas: pods.length,
    isReady: pods.length === spec.replicas && pods.every(isReadyPod),
  });
  for (let i = 0; i < spec.replicas; i++) {
    const pod = `${name}-pod-${i}`;
    const existing = request.child(POD, pod);
    // Leave out a pod that has ended (it was evicted): the host deletes it, and the next reconcile recreates it.
    if (existing && isFinishedPod(existing)) continue;
    response.child({
      ...POD,
      metadata: { name: pod, labels: { app: name } },
      spec: { containers: [{ name: "echo", image: spec.image }] },
    });
  }
  return response;
}

export const reconciler = plugin({
  name: "echo",
  version: "0.1.0",
  parent: kind("my-operator.dev/v1", "Echo"),
  makes: [POD],
  crd,
  spec: { replicas: "integer", image: "string" },
  reconcile,
});
