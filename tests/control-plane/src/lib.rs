//! A real Kubernetes control plane on this machine.
