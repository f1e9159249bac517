//! The SDK of plugins in Zig: a plugin is a WASI command, which reads one call as JSON and writes its answer.
const std = @import("std");

pub const Value = std.json.Value;

/// The version of the plugin contract that the records are of.
const contract = "1.0.0";

/// Everything lives until the call ends, and the instance with it.
var arena = std.heap.ArenaAllocator.init(std.heap.wasm_allocator);
pub const allocator = arena.allocator();

/// A failure as an error; `invalid` and `retry` set what else the host must know.
pub const Failure = error{ Invalid, Retry } || std.mem.Allocator.Error;

/// A kind as written in a manifest.
pub const Kind = struct {
    // fields of Kind: as in wit/types.wit, by plugins/records.py
    /// `v1` or `group/version`.
    apiVersion: []const u8,
    /// The kind, such as `Deployment`.
    kind: []const u8,
    // end of fields

    pub fn init(apiVersion: []const u8, kind: []const u8) Kind {
        return .{ .apiVersion = apiVersion, .kind = kind };
    }
};

/// A child that stays as it is.
pub const Reference = struct {
    // fields of ObjectRef: as in wit/types.wit, by plugins/records.py
    /// `v1` or `group/version`.
    apiVersion: []const u8,
    /// The kind.
    kind: []const u8,
    /// Absent: the parent's own namespace, or none for a cluster-scoped kind.
    namespace: ?[]const u8 = null,
    /// The object's name.
    name: []const u8,
    // end of fields
};

pub const Condition = struct {
    // fields of Condition: as in wit/types.wit, by plugins/records.py
    /// CamelCase, such as `Ready`.
    type: []const u8,
    /// `True`, `False` or `Unknown`.
    status: []const u8,
    /// CamelCase, for machines.
    reason: []const u8,
    /// A sentence, for people.
    message: []const u8,
    // end of fields
};

pub const Event = struct {
    /// `Normal` or `Warning`.
    type: []const u8 = "Normal",
    // fields of Event without type: as in wit/types.wit, by plugins/records.py
    /// CamelCase, such as `ScaledDown`.
    reason: []const u8,
    /// A sentence, for people.
    message: []const u8,
    // end of fields
};

/// Objects to read: by name, or those that a label selector picks, in one namespace or in several.
pub const Need = struct {
    // fields of Need: as in wit/types.wit, by plugins/records.py
    /// Chosen by the plugin, unique in the response.
    id: []const u8,
    /// `v1` or `group/version`.
    apiVersion: []const u8,
    /// The kind.
    kind: []const u8,
    /// Absent: the parent's own namespace, or none for a cluster-scoped kind. `*`: every namespace that the controller may read.
    namespace: ?[]const u8 = null,
    /// In place of `namespace`: the labels of the namespaces, as in `kubectl get -l`. Those count that the controller may read.
    namespaceSelector: ?[]const u8 = null,
    /// Absent: every object that the selector picks.
    name: ?[]const u8 = null,
    /// In place of `name`: several. Empty: every object that the selector picks.
    names: []const []const u8 = &.{},
    /// As in `kubectl get -l`.
    labelSelector: ?[]const u8 = null,
    // end of fields
};

/// A Secret whose values the host makes, once.
pub const GeneratedSecret = struct {
    // fields of GeneratedSecret: as in wit/types.wit, by plugins/records.py
    /// The Secret's name; its namespace is the parent's.
    name: []const u8,
    /// The keys that the Secret must contain.
    entries: []const GeneratedValue = &.{},
    // end of fields
};

/// One value of a generated Secret.
pub const GeneratedValue = struct {
    // fields of GeneratedValue: as in wit/types.wit, by plugins/records.py
    /// The key in the Secret's data.
    key: []const u8,
    /// How many characters, 8 to 1024.
    length: u32,
    /// The characters to draw from, each once, at least 2; absent: letters and digits.
    alphabet: ?[]const u8 = null,
    // end of fields
};

/// An object of the cluster.
pub const Object = struct {
    value: Value,

    /// Returns the value at a path such as `status/phase`.
    pub fn get(object: Object, path: []const u8) ?Value {
        var value = object.value;
        var steps = std.mem.splitScalar(u8, path, '/');
        while (steps.next()) |step| {
            if (value != .object) return null;
            value = value.object.get(step) orelse return null;
        }
        return value;
    }

    /// Returns the string at a path.
    pub fn text(object: Object, path: []const u8) ?[]const u8 {
        const value = object.get(path) orelse return null;
        return if (value == .string) value.string else null;
    }

    /// Returns the integer at a path.
    pub fn integer(object: Object, path: []const u8) ?i64 {
        const value = object.get(path) orelse return null;
        return if (value == .integer) value.integer else null;
    }

    pub fn name(object: Object) []const u8 {
        return object.text("metadata/name") orelse "";
    }

    pub fn is(object: Object, kind: Kind) bool {
        return same(object.text("kind"), kind.kind) and same(object.text("apiVersion"), kind.apiVersion);
    }

    /// Reports whether the object is being deleted.
    pub fn isTerminating(object: Object) bool {
        return object.get("metadata/deletionTimestamp") != null;
    }

    /// Returns the status of a condition: `True`, `False` or `Unknown`.
    pub fn condition(object: Object, kind: []const u8) ?[]const u8 {
        const conditions = object.get("status/conditions") orelse return null;
        if (conditions != .array) return null;
        for (conditions.array.items) |item| {
            const found: Object = .{ .value = item };
            if (same(found.text("type"), kind)) return found.text("status");
        }
        return null;
    }

    /// Reports whether a Pod has ended permanently, such as an evicted one.
    pub fn isFinishedPod(pod: Object) bool {
        const phase = pod.text("status/phase");
        return same(phase, "Failed") or same(phase, "Succeeded");
    }

    /// Reports whether a Pod is ready.
    pub fn isReadyPod(pod: Object) bool {
        const phase = pod.text("status/phase");
        if (pod.isTerminating() or same(phase, "Failed")) return false;
        if (same(phase, "Succeeded")) {
            const policy = pod.text("spec/restartPolicy");
            return same(policy, "OnFailure") or same(policy, "Never");
        }
        return same(pod.condition("Ready"), "True");
    }

    pub fn reference(object: Object) Reference {
        return .{
            .apiVersion = object.text("apiVersion") orelse "",
            .kind = object.text("kind") orelse "",
            .namespace = object.text("metadata/namespace"),
            .name = object.name(),
        };
    }
};

/// The input of one call. `Spec` is a struct with the fields that the plugin reads.
pub fn Request(comptime Spec: type) type {
    return struct {
        parent: Object,
        name: []const u8,
        spec: Spec,
        children: []const Object,
        related: Value,
        // plain fields of Request without traceparent: as in wit/types.wit, by plugins/records.py
        /// The host's clock in RFC 3339, UTC, in whole seconds that have passed.
        now: []const u8 = "",
        /// Whether the parent's namespace is being deleted: nothing can be created there any more, and a `cleanup` must do without.
        namespaceTerminating: bool = false,
        // end of fields

        const Self = @This();

        fn read(value: Value) Failure!Self {
            const request: Object = .{ .value = value };
            const parent: Object = .{ .value = request.get("parent") orelse .null };
            var self: Self = .{
                .parent = parent,
                .name = parent.name(),
                .spec = try readValue(Spec, parent.get("spec") orelse .{ .object = .empty }, "spec"),
                .children = try objects(request.get("children")),
                .related = request.get("related") orelse .null,
            };
            const fields = @typeInfo(Self).@"struct";
            inline for (fields.field_names, fields.field_types, fields.field_attrs) |name, Field, attributes| {
                // The plain fields are those that have a default.
                if (comptime attributes.defaultValue(Field) != null) {
                    if (request.get(name)) |given| @field(self, name) = try readValue(Field, given, name);
                }
            }
            return self;
        }

        /// Returns a child by kind and name, in the parent's namespace.
        pub fn child(request: Self, kind: Kind, name: []const u8) ?Object {
            const namespace = request.parent.text("metadata/namespace");
            for (request.children) |object| {
                const place = object.text("metadata/namespace");
                const here = if (namespace) |it| same(place, it) else place == null;
                if (here and object.is(kind) and std.mem.eql(u8, object.name(), name)) return object;
            }
            return null;
        }

        /// Returns the objects that the host read for a need; null when it has not read them yet.
        pub fn answer(request: Self, id: []const u8) Failure!?[]const Object {
            if (request.related != .array) return null;
            for (request.related.array.items) |item| {
                const related: Object = .{ .value = item };
                if (same(related.text("id"), id)) return try objects(related.get("objects"));
            }
            return null;
        }
    };
}

/// What should be. The host deletes every child of the parent that the response does not name.
pub const Response = struct {
    children: std.ArrayList(Json) = .empty,
    keep: std.ArrayList(Reference) = .empty,
    generate: std.ArrayList(GeneratedSecret) = .empty,
    status: ?Json = null,
    parent: ?Json = null,
    conditions: std.ArrayList(Condition) = .empty,
    events: std.ArrayList(Event) = .empty,
    needs: std.ArrayList(Need) = .empty,
    // plain fields of Response: as in wit/types.wit, by plugins/records.py
    /// For `cleanup`, which is called again until it says so: the parent may go, and the host takes its finalizer off.
    done: bool = false,
    /// Reconcile again after so many milliseconds, even when nothing changes.
    requeueAfterMs: ?u64 = null,
    /// Reconcile again when the host's clock has reached this time, in RFC 3339, even when nothing changes. A time that is not after `now` has no effect. With both, the earlier one counts.
    requeueAt: ?[]const u8 = null,
    // end of fields

    /// Adds a child that should exist, as a complete object: any struct, with the fields of the manifest.
    pub fn child(response: *Response, object: anytype) Failure!void {
        try requireJson(object, "a child");
        const wanted = try json(object);
        const value = std.json.parseFromSliceLeaky(Value, allocator, wanted, .{}) catch return error.OutOfMemory;
        const named: Object = .{ .value = value };
        for (observed) |existing| {
            // The host applies a child again when it is gone.
            if (existing.isTerminating() and refersTo(named, existing)) {
                return response.keep.append(allocator, existing.reference());
            }
        }
        try response.children.append(allocator, .{ .text = wanted });
    }

    /// Sets the parent's whole status, but for what the host writes.
    pub fn setStatus(response: *Response, status: anytype) Failure!void {
        response.status = try objectText(status, "status");
    }

    /// Sets the fields that the parent should have: for a Controller that decorates, below the paths of its `fields`.
    pub fn setParent(response: *Response, fields: anytype) Failure!void {
        response.parent = try objectText(fields, "parent");
    }

    pub fn condition(response: *Response, it: Condition) Failure!void {
        try response.conditions.append(allocator, it);
    }

    pub fn event(response: *Response, it: Event) Failure!void {
        try response.events.append(allocator, it);
    }

    pub fn need(response: *Response, it: Need) Failure!void {
        try response.needs.append(allocator, it);
    }

    pub fn jsonStringify(response: Response, writer: anytype) !void {
        try writer.beginObject();
        inline for (@typeInfo(Response).@"struct".field_names) |name| {
            const value = @field(response, name);
            switch (@typeInfo(@TypeOf(value))) {
                .optional => if (value) |it| {
                    try writer.objectField(name);
                    try writer.write(it);
                },
                .@"struct" => {
                    try writer.objectField(name);
                    try writer.write(value.items);
                },
                else => {
                    try writer.objectField(name);
                    try writer.write(value);
                },
            }
        }
        try writer.endObject();
    }
};

/// The text of a JSON value in an answer.
const Json = struct {
    text: []const u8,

    pub fn jsonStringify(it: Json, writer: anytype) !void {
        try writer.print("{s}", .{it.text});
    }
};

/// What the user must change in a resource, found by `validate`.
pub const Errors = struct {
    items: std.ArrayList(struct { path: []const u8, message: []const u8 }) = .empty,

    /// Adds an error: the path of the field, such as "spec.rules[0].host", and what is wrong and what to change.
    pub fn add(errors: *Errors, path: []const u8, comptime format: []const u8, arguments: anytype) Failure!void {
        try errors.items.append(allocator, .{ .path = path, .message = try print(format, arguments) });
    }

    /// Adds what `invalid` says, which begins with the path.
    fn addInvalid(errors: *Errors, failure: Failure) Failure!void {
        if (failure != error.Invalid) return failure;
        const end = std.mem.indexOf(u8, message, ": ");
        const path = if (end) |it| message[0..it] else "spec";
        try errors.add(path, "{s}", .{if (end) |it| message[it + 2 ..] else message});
    }
};

/// What a plugin says about itself.
pub const Description = struct {
    name: []const u8,
    version: []const u8,
    parent: Kind,
    /// Other kinds that it decorates in the same way.
    also: []const Kind = &.{},
    makes: []const Kind = &.{},
    reads: []const Kind = &.{},
    finalizer: bool = false,
    /// The CustomResourceDefinition as JSON; `null` for kinds that it decorates.
    crd: []const u8 = "null",
};

/// The children in the cluster.
var observed: []const Object = &.{};
var message: []const u8 = "";
var retryAfterMs: ?u64 = null;

/// Fails: the user must change the resource. Nothing is retried until it changes.
pub fn invalid(comptime format: []const u8, arguments: anytype) Failure {
    if (format.len == 0) @compileError("a failure has a message");
    message = try std.fmt.allocPrint(allocator, format, arguments);
    return error.Invalid;
}

/// Fails: something does not exist yet. The host retries, after this time or its own back-off.
pub fn retry(afterMs: ?u64, comptime format: []const u8, arguments: anytype) Failure {
    if (format.len == 0) @compileError("a failure has a message");
    message = try std.fmt.allocPrint(allocator, format, arguments);
    retryAfterMs = afterMs;
    return error.Retry;
}

/// Writes a line to the host's log.
pub fn log(comptime format: []const u8, arguments: anytype) void {
    const line = std.fmt.allocPrint(allocator, format ++ "\n", arguments) catch return;
    write(2, line);
}

/// Formats text that lives until the call ends.
pub fn print(comptime format: []const u8, arguments: anytype) Failure![]const u8 {
    return std.fmt.allocPrint(allocator, format, arguments);
}

/// Answers the call on standard input: a plugin's `main` consists of this. `operator` has the functions `reconcile` and,
/// with a finalizer, `cleanup`; both take a request and the response to fill. It may have `validate`, which takes a
/// request with the parent alone, the stored parent if there is one, and the errors to fill.
pub fn run(comptime Spec: type, comptime description: Description, comptime operator: type) void {
    const input = std.json.parseFromSliceLeaky(Value, allocator, readAll() catch @panic("out of memory"), .{}) catch
        @panic("standard input is not JSON");
    const call: Object = .{ .value = input };
    const text = answer(Spec, description, operator, call) catch |failure| fail(failure) catch @panic("out of memory");
    write(1, text);
}

fn answer(comptime Spec: type, comptime description: Description, comptime operator: type, call: Object) Failure![]const u8 {
    const name = call.text("call") orelse "";
    if (std.mem.eql(u8, name, "describe")) {
        const it = try json(.{
            .contract = contract,
            .name = description.name,
            .version = description.version,
            .parent = description.parent,
            .also = description.also,
            .makes = description.makes,
            .reads = description.reads,
            .finalizer = description.finalizer,
            .validates = @hasDecl(operator, "validate"),
        });
        return print("{{\"description\":{s},\"crd\":{s}}}}}", .{ it[0 .. it.len - 1], description.crd });
    }
    if (std.mem.eql(u8, name, "validate")) {
        var errors: Errors = .{};
        if (Request(Spec).read(call.value)) |request| {
            const old: ?Object = if (call.get("oldParent")) |value| .{ .value = value } else null;
            if (@hasDecl(operator, "validate")) operator.validate(request, old, &errors) catch |failure| try errors.addInvalid(failure);
        } else |failure| try errors.addInvalid(failure);
        return json(.{ .validated = errors.items.items });
    }
    var response: Response = .{};
    if (Request(Spec).read(call.get("request") orelse .null)) |request| {
        observed = request.children;
        if (std.mem.eql(u8, name, "reconcile")) {
            try operator.reconcile(request, &response);
        } else {
            response.done = true;
            if (@hasDecl(operator, "cleanup")) try operator.cleanup(request, &response);
        }
    } else |failure| {
        if (failure != error.Invalid or !std.mem.eql(u8, name, "cleanup")) return failure;
        // The resource can go, whatever its definition let in.
        response.done = true;
        const text = try print("{s}. The plugin cannot read the resource, so its cleanup did not run", .{message});
        if (@hasDecl(operator, "cleanup")) try response.event(.{ .type = "Warning", .reason = "CleanupSkipped", .message = text });
    }
    return json(.{ .response = response });
}

fn fail(failure: Failure) ![]const u8 {
    return switch (failure) {
        error.Invalid => json(.{ .failure = .{ .invalid = .{ .message = message } } }),
        error.Retry => json(.{ .failure = .{ .retry = .{ .message = message, .afterMs = retryAfterMs } } }),
        error.OutOfMemory => error.OutOfMemory,
    };
}

/// The definition in the cluster may be older than the plugin, or not the plugin's: a value of another type is invalid, and
/// the message has its path.
fn readValue(comptime T: type, value: Value, path: []const u8) Failure!T {
    if (T == Value) return value;
    const expected = switch (@typeInfo(T)) {
        .optional => |optional| return if (value == .null) null else try readValue(optional.child, value, path),
        .@"struct" => |fields| {
            if (value != .object) return invalid("{s}: must be an object", .{path});
            var read: T = undefined;
            inline for (fields.field_names, fields.field_types, fields.field_attrs) |name, Field, attributes| {
                const given = value.object.get(name) orelse .null;
                if (given != .null) {
                    @field(read, name) = try readValue(Field, given, try print("{s}.{s}", .{ path, name }));
                } else if (comptime attributes.defaultValue(Field)) |default| {
                    @field(read, name) = default;
                } else if (@typeInfo(Field) == .optional) {
                    @field(read, name) = null;
                } else {
                    return invalid("{s}: missing field `{s}`", .{ path, name });
                }
            }
            return read;
        },
        .pointer => |pointer| if (pointer.child == u8) "a string" else {
            if (value != .array) return invalid("{s}: must be a list", .{path});
            const items = try allocator.alloc(pointer.child, value.array.items.len);
            for (items, value.array.items, 0..) |*item, it, index| {
                item.* = try readValue(pointer.child, it, try print("{s}[{d}]", .{ path, index }));
            }
            return items;
        },
        .bool => "true or false",
        .int => |int| if (int.signedness == .signed) "an integer" else "an integer that is not negative",
        .float => "a number",
        .@"enum" => |names| "one of " ++ comptime joined(names.field_names),
        else => "of the type " ++ @typeName(T),
    };
    // The parser also takes texts with numbers, and lists of bytes.
    const isLike = switch (@typeInfo(T)) {
        .int, .float => value == .integer or value == .float or value == .number_string,
        .pointer, .@"enum" => value == .string,
        else => true,
    };
    if (!isLike) return invalid("{s}: must be {s}", .{ path, expected });
    return std.json.parseFromValueLeaky(T, allocator, value, .{ .ignore_unknown_fields = true }) catch
        invalid("{s}: must be {s}", .{ path, expected });
}

fn joined(comptime names: anytype) []const u8 {
    var text: []const u8 = "";
    inline for (names, 0..) |name, index| text = text ++ (if (index == 0) "" else ", ") ++ name;
    return text;
}

fn refersTo(child: Object, existing: Object) bool {
    const kind = Kind.init(existing.text("apiVersion") orelse "", existing.text("kind") orelse "");
    const namespace = child.text("metadata/namespace");
    const here = namespace == null or same(existing.text("metadata/namespace"), namespace.?);
    return here and child.is(kind) and std.mem.eql(u8, child.name(), existing.name());
}

fn objects(list: ?Value) Failure![]const Object {
    const values = list orelse return &.{};
    if (values != .array) return &.{};
    const found = try allocator.alloc(Object, values.array.items.len);
    for (found, values.array.items) |*object, value| object.* = .{ .value = value };
    return found;
}

fn same(text: ?[]const u8, expected: []const u8) bool {
    return if (text) |it| std.mem.eql(u8, it, expected) else false;
}

/// What JSON does not have ends the call, with its path.
fn requireJson(value: anytype, path: []const u8) Failure!void {
    const T = @TypeOf(value);
    switch (@typeInfo(T)) {
        .float => if (!std.math.isFinite(value)) wrong(path, try print("is {d}, which JSON does not have", .{value})),
        .optional => if (value) |it| try requireJson(it, path),
        .@"struct" => |fields| if (!std.meta.hasFn(T, "jsonStringify")) {
            inline for (fields.field_names) |name| {
                try requireJson(@field(value, name), try print("{s}.{s}", .{ path, name }));
            }
        },
        .array => for (value, 0..) |it, index| try requireJson(it, try print("{s}[{d}]", .{ path, index })),
        .pointer => |pointer| switch (pointer.size) {
            .one => try requireJson(value.*, path),
            .slice => if (pointer.child == u8) {
                if (!std.unicode.utf8ValidateSlice(value)) wrong(path, "is a text that is not UTF-8");
            } else for (value, 0..) |it, index| try requireJson(it, try print("{s}[{d}]", .{ path, index })),
            else => {},
        },
        else => {},
    }
}

fn objectText(value: anytype, path: []const u8) Failure!Json {
    try requireJson(value, path);
    const text = try json(value);
    if (text[0] != '{') wrong(path, "must be an object");
    return .{ .text = text };
}

fn wrong(path: []const u8, what: []const u8) noreturn {
    std.debug.panic("{s} {s}", .{ path, what });
}

fn json(value: anytype) Failure![]const u8 {
    return std.json.Stringify.valueAlloc(allocator, value, .{ .emit_null_optional_fields = false });
}

fn readAll() ![]const u8 {
    var text: std.ArrayList(u8) = .empty;
    while (true) {
        try text.ensureUnusedCapacity(allocator, 65536);
        const free = text.unusedCapacitySlice();
        const part = [1]std.os.wasi.iovec_t{.{ .base = free.ptr, .len = free.len }};
        var count: usize = 0;
        if (std.os.wasi.fd_read(0, &part, 1, &count) != .SUCCESS or count == 0) return text.items;
        text.items.len += count;
    }
}

fn write(descriptor: i32, text: []const u8) void {
    var rest = text;
    while (rest.len > 0) {
        const part = [1]std.os.wasi.ciovec_t{.{ .base = rest.ptr, .len = rest.len }};
        var count: usize = 0;
        if (std.os.wasi.fd_write(descriptor, &part, 1, &count) != .SUCCESS) return;
        rest = rest[count..];
    }
}
