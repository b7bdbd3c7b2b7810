;; A handler with a table of more elements than the host allows.
(module
  (memory (export "memory") 1)
  (table 65537 funcref)
  (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (unreachable))
  (func (export "ordain:handler/handler@0.1.0#handle") (param i32) (result i32) (unreachable)))
