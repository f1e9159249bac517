// Echo: runs a number of pods of one image. The same operator as ../../echo, in AssemblyScript.
import { Kind, Metadata, Plugin, Request, Response } from "./operator-plugin";
import { crd } from "../build/crd";

const POD = Kind.of("v1", "Pod");

@json
class Container {
  name: string = "echo";
  image: string = "";
}

@json
class PodSpec {
  containers: Container[] = [];
}

@json
class Pod {
  apiVersion: string = "v1";
  kind: string = "Pod";
  metadata: Metadata = new Metadata();
  spec: PodSpec = new PodSpec();
}

@json
class Status {
  currentReplicas: i32 = 0;
  isReady: bool = false;
}

function reconcile(request: Request): Response {
  const wanted = <i32>request.spec.at("replicas").number;
  const image = request.spec.at("image").text;

  const response = new Response();
  for (let i = 0; i < wanted; i++) {
    const name = `${request.name}-pod-${i}`;
    const existing = request.child(POD, name);
    // Leave out a pod that has ended (it was evicted): the host deletes it, and the next reconcile recreates it.
    if (existing && existing.isFinishedPod) continue;
    const pod = new Pod();
    pod.metadata.name = name;
    pod.metadata.label("app", request.name);
    pod.spec.containers = [{ name: "echo", image }];
    response.child(pod);
  }

  const pods = request.childrenOf(POD);
  let ready = 0;
  for (let i = 0; i < pods.length; i++) {
    if (pods[i].isReadyPod) ready++;
  }
  const status: Status = { currentReplicas: pods.length, isReady: pods.length == wanted && ready == wanted };
  return response.status(status);
}

new Plugin("echo", "0.1.0", Kind.of("my-operator.dev/v1", "Echo"), [POD], crd, reconcile)
  .field("replicas", "integer")
  .field("image", "string")
  .run();
