//! Native tests of the handler, with the runner of the SDK for C.

const std = @import("std");
const c = @import("c");
const expect = std.testing.expect;

comptime {
    _ = @import("orders");
}

fn expectText(expected: []const u8, actual: c.ordain_bytes) !void {
    try std.testing.expectEqualStrings(expected, actual.ptr[0..actual.len]);
}

fn send(runner: ?*c.ordain_runner, kind: [*:0]const u8, data: [*:0]const u8) *const c.ordain_outcome {
    return c.ordain_runner_event(runner, kind, data);
}

test "order is processed from creation to refund" {
    const runner = c.ordain_runner_new();
    defer c.ordain_runner_free(runner);
    try expect(send(runner, "order.created", "{\"amount_cents\":900}").result == c.ORDAIN_OK);
    const paid = send(runner, "shop.order.paid", "{\"by\":\"card\"}");
    try expectText("order.paid", paid.messages[0].type);
    try expectText("{\"order\":\"key\",\"status\":\"paid\",\"amount_cents\":900}", paid.messages[0].data);
    for ([_][*:0]const u8{ "packed", "order.shipped", "order.delivered" }) |kind| {
        try expect(send(runner, kind, "").result == c.ORDAIN_OK);
    }
    const refunded = send(runner, "order.refunded", "");
    try expect(refunded.complete and refunded.messages[0].end_of_sequence);
    try expect(c.ordain_runner_state(runner) == null);
}

test "rejection names the valid steps" {
    const runner = c.ordain_runner_new();
    defer c.ordain_runner_free(runner);
    c.ordain_runner_set_state(runner, "{\"status\":\"paid\",\"amount_cents\":1}");
    const shipped = send(runner, "order.shipped", "");
    try expect(shipped.result == c.ORDAIN_REJECT);
    try std.testing.expectEqualStrings(
        "an order that is paid cannot be shipped: it can be packed or cancelled",
        std.mem.span(shipped.reason),
    );
}

test "unpaid order can be updated" {
    const runner = c.ordain_runner_new();
    defer c.ordain_runner_free(runner);
    try expect(send(runner, "order.updated", "{\"amount_cents\":1}").result == c.ORDAIN_REJECT);
    _ = send(runner, "order.created", "{\"amount_cents\":900}");
    const updated = send(runner, "order.updated", "{\"amount_cents\":18446744073709551615}");
    try expectText("{\"status\":\"created\",\"amount_cents\":18446744073709551615}", updated.state);
}
