package ordain

// DescribePanic is describePanic for tests whose own functions are those of a handler.
var DescribePanic = describePanic
