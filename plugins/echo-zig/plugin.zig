//! Echo: runs a number of pods of one image. The same operator as ../echo, in Zig.
const plugin = @import("operator_plugin.zig");

const POD = plugin.Kind.init("v1", "Pod");

const Spec = struct {
    replicas: u32,
    image: []const u8,
};

const operator = struct {
    pub fn reconcile(request: plugin.Request(Spec), response: *plugin.Response) plugin.Failure!void {
        const spec = request.spec;
        for (0..spec.replicas) |i| {
            const name = try plugin.print("{s}-pod-{d}", .{ request.name, i });
            if (request.child(POD, name)) |existing| {
                // Leave out a pod that has ended (it was evicted): the host deletes it, and the next reconcile recreates it.
                if (existing.isFinishedPod()) continue;
            }
            try response.child(.{
                .apiVersion = POD.apiVersion,
                .kind = POD.kind,
                .metadata = .{ .name = name, .labels = .{ .app = request.name } },
                .spec = .{ .containers = .{.{ .name = "echo", .image = spec.image }} },
            });
        }
        var pods: usize = 0;
        var ready: usize = 0;
        for (request.children) |child| {
            if (!child.is(POD)) continue;
            pods += 1;
            if (child.isReadyPod()) ready += 1;
        }
        try response.setStatus(.{
            .currentReplicas = pods,
            .isReady = pods == spec.replicas and ready == spec.replicas,
        });
    }
};

pub fn main() void {
    plugin.run(Spec, .{
        .name = "echo",
        .version = "0.1.0",
        .parent = plugin.Kind.init("my-operator.dev/v1", "Echo"),
        .makes = &.{POD},
        .crd = @embedFile("crd.json"),
    }, operator);
}
