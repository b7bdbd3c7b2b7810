;; Speaks a later version of the contract.
(component
  (core module $m (func (export "f")))
  (core instance $i (instantiate $m))
  (func $f (canon lift (core func $i "f")))
  (instance $x (export "handle" (func $f)))
  (export "ordain:handler/handler@0.2.0" (instance $x)))
