;; The handler of the demo: the life of an order. The module has the steps, the messages and the state of the handler
;; `plugins/orders`, except the step `updated`, which the demo does not generate.
;;
;; The state and the data of a receipt are JSON. The handler writes keys into JSON without escapes, because the keys of
;; the demo need none.
;;
;; A status is a number: 0 no order, 1 created, 2 paid, 3 packed, 4 shipped, 5 delivered, 6 cancelled, 7 refunded.
;;
;; Memory: at 0 the result of `handle`, at 64 the message, at 1024 the constants, at 4096 the heap. Each call begins
;; with an empty heap: the host fills it with the event and the state, and the handler appends the texts of the result.
(module
  (memory $memory (export "memory") 2)
  (global $top (mut i32) (i32.const 4096))

  ;; The names of the statuses: 16 bytes for each, the first of which is the length.
  (data (i32.const 1040) "\07created")
  (data (i32.const 1056) "\04paid")
  (data (i32.const 1072) "\06packed")
  (data (i32.const 1088) "\07shipped")
  (data (i32.const 1104) "\09delivered")
  (data (i32.const 1120) "\09cancelled")
  (data (i32.const 1136) "\08refunded")
  ;; For each status, the set of possible next statuses. Bit N stands for status N.
  (data (i32.const 1152) "\02\44\48\50\20\80\80\00")

  (data (i32.const 1168) "receipts")
  (data (i32.const 1184) "application/json")
  (data (i32.const 1216) "{\"order\":\"")
  (data (i32.const 1232) "\",\"status\":\"")
  (data (i32.const 1248) "{\"status\":\"")
  (data (i32.const 1264) "\",\"amount_cents\":")
  (data (i32.const 1296) "the order cannot take this step")
  (data (i32.const 1344) "creating an order requires \"amount_cents\" in the data")

  (func $allocate (export "cabi_realloc") (param i32 i32 i32 i32) (result i32)
    (local $at i32) (local $missing i32)
    (local.set $at (i32.and (i32.add (global.get $top) (i32.const 7)) (i32.const -8)))
    (global.set $top (i32.add (local.get $at) (local.get 3)))
    (local.set $missing
      (i32.sub (i32.shr_u (i32.add (global.get $top) (i32.const 65535)) (i32.const 16)) (memory.size)))
    (if (i32.gt_s (local.get $missing) (i32.const 0))
      (then (if (i32.eq (memory.grow (local.get $missing)) (i32.const -1)) (then (unreachable)))))
    (local.get $at))

  ;; Returns whether two texts of the same length are equal.
  (func $equal (param $left i32) (param $right i32) (param $length i32) (result i32)
    (block $differ
      (loop $next
        (if (i32.eqz (local.get $length)) (then (return (i32.const 1))))
        (br_if $differ (i32.ne (i32.load8_u (local.get $left)) (i32.load8_u (local.get $right))))
        (local.set $left (i32.add (local.get $left) (i32.const 1)))
        (local.set $right (i32.add (local.get $right) (i32.const 1)))
        (local.set $length (i32.sub (local.get $length) (i32.const 1)))
        (br $next)))
    (i32.const 0))

  ;; Returns the address of the entry of a status: its length, then its name.
  (func $name (param $status i32) (result i32)
    (i32.add (i32.const 1024) (i32.shl (local.get $status) (i32.const 4))))

  ;; Returns the status whose name begins at an address; 0 if there is none. No name begins with another name.
  (func $status_at (param $at i32) (param $end i32) (result i32)
    (local $status i32) (local $length i32)
    (local.set $status (i32.const 7))
    (block $found
      (loop $next
        (br_if $found (i32.eqz (local.get $status)))
        (local.set $length (i32.load8_u (call $name (local.get $status))))
        (if (i32.le_u (local.get $length) (i32.sub (local.get $end) (local.get $at)))
          (then (br_if $found
            (call $equal
              (local.get $at) (i32.add (call $name (local.get $status)) (i32.const 1)) (local.get $length)))))
        (local.set $status (i32.sub (local.get $status) (i32.const 1)))
        (br $next)))
    (local.get $status))

  ;; Returns the status that the type of an event names: the part after the last dot. Returns 0 if it names none.
  (func $status_of_type (param $start i32) (param $length i32) (result i32)
    (local $at i32) (local $end i32) (local $status i32)
    (local.set $end (i32.add (local.get $start) (local.get $length)))
    (local.set $at (local.get $end))
    (block $done
      (loop $next
        (br_if $done (i32.le_u (local.get $at) (local.get $start)))
        (br_if $done (i32.eq (i32.load8_u (i32.sub (local.get $at) (i32.const 1))) (i32.const 46)))
        (local.set $at (i32.sub (local.get $at) (i32.const 1)))
        (br $next)))
    (local.set $status (call $status_at (local.get $at) (local.get $end)))
    (select
      (local.get $status)
      (i32.const 0)
      (i32.eq (i32.sub (local.get $end) (local.get $at)) (i32.load8_u (call $name (local.get $status))))))

  ;; Returns the number after `"amount_cents":` in a text; -1 if there is none.
  (func $amount (param $at i32) (param $length i32) (result i64)
    (local $end i32) (local $digit i32) (local $amount i64)
    (local.set $end (i32.add (local.get $at) (local.get $length)))
    (local.set $amount (i64.const -1))
    (block $done
      (block $found
        (loop $search
          (br_if $done (i32.gt_u (i32.add (local.get $at) (i32.const 16)) (local.get $end)))
          ;; The constant at 1264 contains the text after two other bytes.
          (br_if $found (call $equal (local.get $at) (i32.const 1266) (i32.const 15)))
          (local.set $at (i32.add (local.get $at) (i32.const 1)))
          (br $search)))
      (local.set $at (i32.add (local.get $at) (i32.const 15)))
      (loop $next
        (br_if $done (i32.ge_u (local.get $at) (local.get $end)))
        (local.set $digit (i32.sub (i32.load8_u (local.get $at)) (i32.const 48)))
        (br_if $done (i32.gt_u (local.get $digit) (i32.const 9)))
        (if (i64.eq (local.get $amount) (i64.const -1)) (then (local.set $amount (i64.const 0))))
        (local.set $amount
          (i64.add (i64.mul (local.get $amount) (i64.const 10)) (i64.extend_i32_u (local.get $digit))))
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (br $next)))
    (local.get $amount))

  ;; Appends a text to the heap.
  (func $append (param $from i32) (param $length i32)
    (memory.copy
      (call $extend (local.get $length)) (local.get $from) (local.get $length)))

  ;; Extends the text at the end of the heap by a number of bytes. Returns the address of these bytes. The texts of one
  ;; call are shorter than the space that `handle` has reserved for them.
  (func $extend (param $length i32) (result i32)
    (global.get $top)
    (global.set $top (i32.add (global.get $top) (local.get $length))))

  (func $append_number (param $number i64)
    (if (i64.ge_u (local.get $number) (i64.const 10))
      (then (call $append_number (i64.div_u (local.get $number) (i64.const 10)))))
    (i32.store8
      (call $extend (i32.const 1))
      (i32.add (i32.const 48) (i32.wrap_i64 (i64.rem_u (local.get $number) (i64.const 10))))))

  ;; Appends the end of a JSON object: the name of a status, and an amount.
  (func $append_order (param $status i32) (param $amount i64)
    (call $append
      (i32.add (call $name (local.get $status)) (i32.const 1)) (i32.load8_u (call $name (local.get $status))))
    (call $append (i32.const 1264) (i32.const 17))
    (call $append_number (local.get $amount))
    (i32.store8 (call $extend (i32.const 1)) (i32.const 125)))

  ;; Writes the result of a rejection, with its reason.
  (func $reject (param $reason i32) (param $length i32) (result i32)
    (i32.store8 (i32.const 0) (i32.const 1))
    (i32.store8 (i32.const 8) (i32.const 1))
    (i32.store (i32.const 16) (local.get $reason))
    (i32.store (i32.const 20) (local.get $length))
    (i32.const 0))

  ;; Stores the address and the length of a text.
  (func $store_text (param $to i32) (param $start i32) (param $length i32)
    (i32.store (local.get $to) (local.get $start))
    (i32.store offset=4 (local.get $to) (local.get $length)))

  (func (export "ordain:handler/handler@0.1.0#handle") (param $event i32) (result i32)
    (local $from i32) (local $to i32) (local $amount i64) (local $ends i32) (local $text i32)
    ;; Space for the state and the receipt: the key, and at most 160 other bytes.
    (local.set $text
      (call $allocate
        (i32.const 0) (i32.const 0) (i32.const 1)
        (i32.add (i32.load offset=12 (local.get $event)) (i32.const 160))))
    (memory.fill (i32.const 0) (i32.const 0) (i32.const 144))

    ;; The present status and amount. The status begins after `{"status":"`.
    (if (i32.load8_u offset=96 (local.get $event))
      (then
        (local.set $from
          (call $status_at
            (i32.add (i32.load offset=100 (local.get $event)) (i32.const 11))
            (i32.add (i32.load offset=100 (local.get $event)) (i32.load offset=104 (local.get $event)))))
        (local.set $amount
          (call $amount (i32.load offset=100 (local.get $event)) (i32.load offset=104 (local.get $event)))))
      (else
        (local.set $amount
          (call $amount (i32.load offset=80 (local.get $event)) (i32.load offset=84 (local.get $event))))))
    (local.set $to
      (call $status_of_type (i32.load offset=32 (local.get $event)) (i32.load offset=36 (local.get $event))))

    ;; The texts of the result begin at the start of the reserved space.
    (global.set $top (local.get $text))
    (block $rejected
      (block $no_amount
        (br_if $rejected (i32.eqz (local.get $to)))
        (br_if $rejected
          (i32.eqz
            (i32.and
              (i32.shr_u (i32.load8_u offset=1152 (local.get $from)) (local.get $to)) (i32.const 1))))
        (br_if $no_amount (i64.lt_s (local.get $amount) (i64.const 0)))
        (local.set $ends
          (i32.or
            (i32.eq (local.get $to) (i32.const 7))
            (i32.and (i32.eq (local.get $from) (i32.const 1)) (i32.eq (local.get $to) (i32.const 6)))))

        (if (local.get $ends)
          (then
            (i32.store8 (i32.const 8) (i32.const 2))
            (i32.store8 (i32.const 28) (i32.const 1)))
          (else
            (i32.store8 (i32.const 8) (i32.const 1))
            (call $append (i32.const 1248) (i32.const 11))
            (call $append_order (local.get $to) (local.get $amount))
            (call $store_text
              (i32.const 12) (local.get $text) (i32.sub (global.get $top) (local.get $text)))))

        ;; Created and packed orders get no receipt.
        (if (i32.and (i32.ne (local.get $to) (i32.const 1)) (i32.ne (local.get $to) (i32.const 3)))
          (then
            (local.set $text (global.get $top))
            (call $append (i32.const 1216) (i32.const 10))
            (call $append (i32.load offset=8 (local.get $event)) (i32.load offset=12 (local.get $event)))
            (call $append (i32.const 1232) (i32.const 12))
            (call $append_order (local.get $to) (local.get $amount))
            (call $store_text (i32.const 20) (i32.const 64) (i32.const 1))
            (call $store_text (i32.const 64) (i32.const 1168) (i32.const 8))
            (call $store_text
              (i32.const 84) (i32.load offset=32 (local.get $event)) (i32.load offset=36 (local.get $event)))
            (call $store_text (i32.const 92) (i32.const 1184) (i32.const 16))
            (call $store_text
              (i32.const 108) (local.get $text) (i32.sub (global.get $top) (local.get $text)))
            (i32.store8 (i32.const 136)
              (i32.or (local.get $ends) (i32.load8_u offset=88 (local.get $event))))))
        (global.set $top (i32.const 4096))
        (return (i32.const 0)))
      (global.set $top (i32.const 4096))
      (return (call $reject (i32.const 1344) (i32.const 53))))
    (global.set $top (i32.const 4096))
    (call $reject (i32.const 1296) (i32.const 31))))
