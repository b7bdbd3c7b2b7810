module handlers/{{name}}

go 1.24

require ordain v0.0.0

replace ordain => ./ordain-sdk
