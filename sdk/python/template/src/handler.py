"""The balance of an account. Each key is an account."""

from dataclasses import dataclass

from ordain import Event, Outcome, Reject, put


@dataclass
class Change:
    """The data of an event."""

    amount_cents: int

    def __post_init__(self) -> None:
        if self.amount_cents <= 0:
            raise ValueError("amount_cents must be above 0")


@dataclass
class Account:
    """The state of a key, and the data of a message."""

    balance_cents: int = 0


def handle(event: Event, state: Account | None, data: Change) -> Outcome:
    account = state or Account()
    if event.type == "account.deposited":
        account.balance_cents += data.amount_cents
    elif event.type == "account.withdrawn":
        if data.amount_cents > account.balance_cents:
            raise Reject(f"the balance is only {account.balance_cents} cents")
        account.balance_cents -= data.amount_cents
    else:
        raise Reject(f"unknown type {event.type}")
    return put(account).emit("changes", "account.changed", account)
