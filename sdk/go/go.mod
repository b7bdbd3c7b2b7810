module ordain

go 1.24
