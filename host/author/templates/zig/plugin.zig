//! The @KIND@ operator: runs an image in a Deployment with a number of replicas.
const plugin = @import("operator_plugin.zig");

const DEPLOYMENT = plugin.Kind.init("apps/v1", "Deployment");

const Spec = struct {
    image: []const u8,
    replicas: u32 = 1,
};

const operator = struct {
    pub fn reconcile(request: plugin.Request(Spec), response: *plugin.Response) plugin.Failure!void {
        const spec = request.spec;
        const labels = .{ .@"app.kubernetes.io/name" = request.name };
        try response.child(.{
            .apiVersion = DEPLOYMENT.apiVersion,
            .kind = DEPLOYMENT.kind,
            .metadata = .{ .name = request.name, .labels = labels },
            .spec = .{
                .replicas = spec.replicas,
                .selector = .{ .matchLabels = labels },
                .template = .{
                    .metadata = .{ .labels = labels },
                    .spec = .{ .containers = .{.{ .name = "main", .image = spec.image }} },
                },
            },
        });

        const existing = request.child(DEPLOYMENT, request.name);
        const ready = if (existing) |it| it.integer("status/readyReplicas") orelse 0 else 0;
        const isReady = ready == spec.replicas;
        try response.setStatus(.{ .readyReplicas = ready });
        try response.condition(.{
            .type = "Ready",
            .status = if (isReady) "True" else "False",
            .reason = if (isReady) "ReplicasReady" else "ReplicasNotReady",
            .message = try plugin.print("{d}/{d} replicas ready", .{ ready, spec.replicas }),
        });
    }
};

pub fn main() void {
    plugin.run(Spec, .{
        .name = "@NAME@",
        .version = "0.1.0",
        .parent = plugin.Kind.init("@GROUP@/@VERSION@", "@KIND@"),
        .makes = &.{DEPLOYMENT},
        .crd = @embedFile("crd.json"),
    }, operator);
}
