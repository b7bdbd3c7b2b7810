//! The lifecycle of an order, in Zig with the SDK for C. Each key is an order.
//!
//! The handler behaves exactly like the example in C, `sdk/c/examples/orders/orders.c`, which describes the valid steps.

const std = @import("std");
const c = @import("c");

const sink = "receipts";

const Status = enum {
    created,
    paid,
    @"packed",
    shipped,
    delivered,
    cancelled,
    refunded,

    /// Returns the statuses that can follow a status; null means that the order does not exist.
    fn next(from: ?Status) []const Status {
        return switch (from orelse return &.{.created}) {
            .created => &.{ .paid, .cancelled },
            .paid => &.{ .@"packed", .cancelled },
            .@"packed" => &.{ .shipped, .cancelled },
            .shipped => &.{.delivered},
            .delivered, .cancelled => &.{.refunded},
            .refunded => &.{},
        };
    }

    /// Returns whether the handler emits a message for the status.
    fn isReported(status: Status) bool {
        return status != .created and status != .@"packed";
    }
};

const Order = struct {
    status: Status,
    amount_cents: u64,

    fn read(state: c.ordain_bytes) Order {
        const json = c.ordain_json_parse(state);
        const name = c.ordain_json_text(json, "status");
        const amount_cents = c.ordain_json_u64(json, "amount_cents");
        c.ordain_check_state(json);
        const status = std.meta.stringToEnum(Status, slice(name)) orelse @panic("the state has an unknown status");
        return .{ .status = status, .amount_cents = amount_cents };
    }

    fn put(order: Order) void {
        c.ordain_put("{\"status\":\"%s\",\"amount_cents\":%llu}", @tagName(order.status).ptr, order.amount_cents);
    }

    fn emit(order: Order, event: *const c.ordain_event, step: [*:0]const u8, is_last: bool) void {
        const message = c.ordain_emit(
            sink,
            c.ordain_text("order.%s", step),
            "{\"order\":%s,\"status\":\"%s\",\"amount_cents\":%llu}",
            c.ordain_quote_bytes(event.key),
            @tagName(order.status).ptr,
            order.amount_cents,
        );
        message.*.end_of_sequence = is_last;
    }
};

fn slice(bytes: c.ordain_bytes) []const u8 {
    return bytes.ptr[0..bytes.len];
}

/// Returns the names of the statuses: `paid or cancelled`.
fn anyOf(statuses: []const Status) [*c]const u8 {
    var text: [*c]const u8 = "";
    for (statuses, 0..) |status, index| {
        const joint = if (index == 0) "" else " or ";
        text = c.ordain_text("%s%s%s", text, joint.ptr, @tagName(status).ptr);
    }
    return text;
}

fn update(event: *const c.ordain_event, data: c.ordain_json, known: ?Order) c.ordain_result {
    var order = known orelse Order{ .status = .refunded, .amount_cents = 0 };
    if (order.status != .created) {
        return c.ordain_reject("only a created order that is not yet paid can be updated");
    }
    if (!c.ordain_json_has(data, "amount_cents")) {
        return c.ordain_reject("updating an order requires \"amount_cents\" in the data");
    }
    const amount_cents = c.ordain_json_u64(data, "amount_cents");
    if (amount_cents == order.amount_cents) return c.ORDAIN_OK;
    order.amount_cents = amount_cents;
    order.put();
    order.emit(event, "updated", event.end_of_sequence);
    return c.ORDAIN_OK;
}

fn rejectStep(from: ?Status, to: Status) c.ordain_result {
    const status = from orelse return c.ordain_reject(
        "an order that does not exist cannot be %s: it must be %s first",
        @tagName(to).ptr,
        anyOf(Status.next(null)),
    );
    return c.ordain_reject(
        "an order that is %s cannot be %s: it can be %s",
        @tagName(status).ptr,
        @tagName(to).ptr,
        anyOf(Status.next(status)),
    );
}

export fn ordain_handle(event: *const c.ordain_event, state: ?*const c.ordain_bytes) c.ordain_result {
    const data = c.ordain_json_parse(event.data);
    if (c.ordain_json_has(data, "amount_cents")) _ = c.ordain_json_u64(data, "amount_cents");
    if (c.ordain_json_error(data) != null) return c.ordain_reject_data(event, data);

    const kind = slice(event.type);
    const start = if (std.mem.lastIndexOfScalar(u8, kind, '.')) |dot| dot + 1 else 0;
    const step = kind[start..];
    const known: ?Order = if (state) |bytes| Order.read(bytes.*) else null;
    if (std.mem.eql(u8, step, "updated")) return update(event, data, known);

    const from: ?Status = if (known) |order| order.status else null;
    const to = std.meta.stringToEnum(Status, step) orelse return c.ordain_reject(
        "%s is not a step of an order: the type must end in %s",
        c.ordain_quote_bytes(event.type),
        anyOf(std.enums.values(Status)),
    );
    if (std.mem.indexOfScalar(Status, Status.next(from), to) == null) return rejectStep(from, to);
    if (known == null and !c.ordain_json_has(data, "amount_cents")) {
        return c.ordain_reject("creating an order requires \"amount_cents\" in the data");
    }

    const amount_cents = if (known) |order| order.amount_cents else c.ordain_json_u64(data, "amount_cents");
    const order = Order{ .status = to, .amount_cents = amount_cents };
    const is_end = to == .refunded or (from == .created and to == .cancelled);
    if (to.isReported()) order.emit(event, @tagName(to), is_end or event.end_of_sequence);
    if (is_end) {
        c.ordain_delete();
        c.ordain_complete();
    } else {
        order.put();
    }
    return c.ORDAIN_OK;
}

/// Reports a panic as a fault of the handler.
pub const panic = std.debug.FullPanic(struct {
    fn fail(message: []const u8, _: ?usize) noreturn {
        c.ordain_fault_at(null, 0, null, "%.*s", @as(c_int, @intCast(message.len)), message.ptr);
        unreachable;
    }
}.fail);
