// The @KIND@ operator: runs an image in a Deployment with a number of replicas.
import { Kind, Metadata, Plugin, Request, Response } from "./operator-plugin";
import { crd } from "../build/crd";

const DEPLOYMENT = Kind.of("apps/v1", "Deployment");
const NAME = "app.kubernetes.io/name";

@json
class Container {
  name: string = "main";
  image: string = "";
}

@json
class PodSpec {
  containers: Container[] = [];
}

@json
class PodLabels {
  labels: Map<string, string> = new Map();
}

@json
class PodTemplate {
  metadata: PodLabels = new PodLabels();
  spec: PodSpec = new PodSpec();
}

@json
class Selector {
  matchLabels: Map<string, string> = new Map();
}

@json
class DeploymentSpec {
  replicas: i32 = 1;
  selector: Selector = new Selector();
  template: PodTemplate = new PodTemplate();
}

@json
class Deployment {
  apiVersion: string = "apps/v1";
  kind: string = "Deployment";
  metadata: Metadata = new Metadata();
  spec: DeploymentSpec = new DeploymentSpec();
}

@json
class Status {
  readyReplicas: i32 = 0;
}

function reconcile(request: Request): Response {
  const name = request.name;
  const image = request.spec.at("image").text;
  const given = request.spec.at("replicas");
  const replicas = given.isThere ? <i32>given.number : 1;

  const deployment = new Deployment();
  deployment.metadata.name = name;
  deployment.metadata.label(NAME, name);
  deployment.spec.replicas = replicas;
  deployment.spec.selector.matchLabels.set(NAME, name);
  deployment.spec.template.metadata.labels.set(NAME, name);
  deployment.spec.template.spec.containers = [{ name: "main", image }];

  const existing = request.child(DEPLOYMENT, name);
  const ready = existing ? <i32>existing.at("status/readyReplicas").number : 0;
  const isReady = ready == replicas;
  const status: Status = { readyReplicas: ready };
  return new Response()
    .child(deployment)
    .status(status)
    .condition(
      "Ready",
      isReady ? "True" : "False",
      isReady ? "ReplicasReady" : "ReplicasNotReady",
      `${ready}/${replicas} replicas ready`,
    );
}

new Plugin("@NAME@", "0.1.0", Kind.of("@GROUP@/@VERSION@", "@KIND@"), [DEPLOYMENT], crd, reconcile)
  // Checked before `reconcile` is called; `?` marks the fields that may be missing.
  .field("image", "string")
  .field("replicas", "integer?")
  .run();
