package main

import (
	"testing"

	"ordain"
)

func TestWithdrawalBeyondTheBalanceIsRejected(t *testing.T) {
	account := ordain.NewRunner(handle)
	if _, err := account.Event("account.deposited", Movement{AmountCents: 1000}); err != nil {
		t.Fatal(err)
	}
	_, err := account.Event("account.withdrawn", Movement{AmountCents: 2000})
	if err == nil || err.Error() != "the balance is only 1000 cents" {
		t.Errorf("the withdrawal returned the error %v", err)
	}
	if balance := account.State().BalanceCents; balance != 1000 {
		t.Errorf("the balance is %d cents", balance)
	}
}
