;; A component whose export has the right interface name, but a misspelt function name.
(component
  (core module $m (func (export "f")))
  (core instance $i (instantiate $m))
  (func $f (canon lift (core func $i "f")))
  (instance $x (export "handel" (func $f)))
  (export "ordain:handler/handler@0.1.0" (instance $x)))
