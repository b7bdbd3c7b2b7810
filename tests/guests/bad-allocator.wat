;; A handler whose allocator returns an address outside of the handler's memory.
(module
  (memory (export "memory") 1)
  (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (i32.const 0x7ffffff0))
  (func (export "ordain:handler/handler@0.1.0#handle") (param i32) (result i32) (unreachable))
)
