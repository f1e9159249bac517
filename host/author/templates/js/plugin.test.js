import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./testing.mjs";

const plugin = await load("plugin.js");

const resource = (spec) => ({
  apiVersion: "@GROUP@/@VERSION@",
  kind: "@KIND@",
  metadata: { name: "my-@SINGULAR@", namespace: "default" },
  spec,
});

test("it runs the image once unless the resource says how often", () => {
  const [deployment] = plugin.reconcile(resource({ image: "nginx" })).children;
  assert.equal(deployment.spec.replicas, 1);
  assert.equal(deployment.spec.template.spec.containers[0].image, "nginx");
});

test("a resource without an image is invalid", () => {
  assert.throws(() => plugin.reconcile(resource({})), { tag: "invalid", message: "spec: missing field `image`" });
});
