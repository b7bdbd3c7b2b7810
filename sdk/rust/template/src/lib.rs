//! The balance of an account. Each key is an account.

use ordain_sdk::prelude::*;

/// The data of an event.
#[derive(Deserialize)]
struct Movement {
    amount_cents: u64,
}

/// The state of a key, and the data of the message `account.changed`.
#[derive(Default, Serialize, Deserialize)]
struct Account {
    balance_cents: u64,
}

fn handle(event: Event<Movement>, account: Option<Account>) -> Result<Outcome<Account>> {
    let balance = account.unwrap_or_default().balance_cents;
    let amount = event.data.amount_cents;
    let after = match &*event.kind {
        "account.deposited" => balance.checked_add(amount).or_reject("the balance is too large")?,
        "account.withdrawn" => {
            let reason = format!("the balance is only {balance} cents");
            balance.checked_sub(amount).or_reject(reason)?
        }
        other => return Err(Failure::reject(format!("unknown type {other}"))),
    };
    let account = Account { balance_cents: after };
    let message = Message::json("changes", "account.changed", &account);
    Ok(Outcome::put(account).emit(message))
}

ordain_sdk::handler!(handle);

#[cfg(test)]
mod tests {
    use super::*;
    use ordain_sdk::testing::{Runner, json};

    #[test]
    fn withdrawal_beyond_the_balance_is_rejected() -> Result<()> {
        let mut account = Runner::new(handle);
        account.event("account.deposited", json!({ "amount_cents": 1000 }))?;
        let withdrawal = account.event("account.withdrawn", json!({ "amount_cents": 2000 }));
        assert!(matches!(withdrawal, Err(Failure::Reject(_))));
        assert_eq!(account.state().unwrap().balance_cents, 1000);
        Ok(())
    }
}
