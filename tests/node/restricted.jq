# What pods violate of the Pod Security Standard "restricted" (https://kubernetes.io/docs/concepts/security/pod-security-standards/),
# with what it has of "baseline": a line for each, of a list of pods.
def rules:
  (.spec.containers + (.spec.initContainers // []) + (.spec.ephemeralContainers // [])) as $containers
  | .spec.securityContext as $pod
  | [
      (if .spec.hostNetwork or .spec.hostPID or .spec.hostIPC then "shares namespaces of the node" else empty end),
      (.spec.volumes // [] | .[] | select([keys[] | select(. != "name")] - ["configMap", "csi", "downwardAPI", "emptyDir",
        "ephemeral", "persistentVolumeClaim", "projected", "secret"] != []) | "volume \(.name) is of a type that is not allowed"),
      (if $pod.sysctls // [] != [] then "sets sysctls" else empty end),
      ($containers[] | .securityContext as $own | . as $container | (
        (if $own.privileged then "is privileged" else empty end),
        (if $own.allowPrivilegeEscalation != false then "allowPrivilegeEscalation is not false" else empty end),
        (if ($own.runAsNonRoot // $pod.runAsNonRoot) != true then "runAsNonRoot is not true" else empty end),
        (if ($own.runAsUser // $pod.runAsUser) == 0 then "runs as root" else empty end),
        (if (($own.seccompProfile // $pod.seccompProfile).type // "") | IN("RuntimeDefault", "Localhost") | not
          then "has no seccomp profile" else empty end),
        (if ($own.capabilities.drop // []) | index("ALL") | not then "does not drop all capabilities" else empty end),
        (if ($own.capabilities.add // []) - ["NET_BIND_SERVICE"] != [] then "adds capabilities" else empty end),
        (if ($own.procMount // "Default") != "Default" then "has an open /proc" else empty end),
        (if [.ports // [] | .[] | select(.hostPort)] != [] then "has a port of the node" else empty end)
      ) | "container \($container.name): \(.)")
    ];
.items[] | .metadata.name as $name | rules[] | "Pod \($name): \(.)"
