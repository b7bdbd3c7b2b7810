// The balance of an account. Each key is an account.
package main

import "ordain"

// The commands that build the handler.
//
//go:generate env GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared -trimpath "-ldflags=-s -w" -o ../core.wasm .
//go:generate ordain plugins wrap ../core.wasm -o ../plugins/{{name}}.wasm

// Movement is the data of an event.
type Movement struct {
	AmountCents uint64 `json:"amount_cents"`
}

// Account is the state of a key, and the data of the message account.changed.
type Account struct {
	BalanceCents uint64 `json:"balance_cents"`
}

func handle(event ordain.Event[Movement], account *Account) (*ordain.Outcome[Account], error) {
	if account == nil {
		account = &Account{}
	}
	amount := event.Data.AmountCents
	if amount == 0 {
		return nil, ordain.Reject(`"amount_cents" is missing or 0`)
	}
	switch event.Type {
	case "account.deposited":
		account.BalanceCents += amount
	case "account.withdrawn":
		if amount > account.BalanceCents {
			return nil, ordain.Reject("the balance is only %d cents", account.BalanceCents)
		}
		account.BalanceCents -= amount
	default:
		return nil, ordain.Reject("unknown type %s", event.Type)
	}
	return ordain.Put(*account).Emit("changes", "account.changed", account), nil
}

func init() { ordain.Handle(handle) }

func main() {}
