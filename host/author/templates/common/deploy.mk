# make deploy: adds the plugin to the host that runs in the current cluster. HOST_NAMESPACE is the namespace of the host.
HOST_NAMESPACE ?= operator-host

.PHONY: deploy
deploy: build/@NAME@.wasm
	kubectl apply --server-side -f crd.json
	$(OPERATOR_HOST) pack --namespace $(HOST_NAMESPACE) $< | kubectl apply --server-side -f -
	kubectl apply --server-side -f controller.yaml
	kubectl wait --for=condition=Ready --timeout=2m controllers.operator-host.dev/@NAME@
