import { handler, put, reject } from '@ordain/sdk';

type Change = { amount_cents: number };

/** The state of a key. Each key is an account. */
type Account = { balance_cents: number };

/** Returns the data of an event in its checked form. An error rejects the event. */
function change(data: unknown): Change {
  const { amount_cents } = (data ?? {}) as Partial<Change>;
  if (typeof amount_cents !== 'number' || amount_cents <= 0) {
    throw new TypeError('"amount_cents" must be a number greater than 0');
  }
  return { amount_cents };
}

export default handler<Change, Account>(
  (event, account = { balance_cents: 0 }) => {
    const balance_cents = balanceAfter(event.type, account.balance_cents, event.data.amount_cents);
    return put({ balance_cents }).emit('changes', 'account.changed', { balance_cents });
  },
  { data: change },
);

function balanceAfter(type: string, balance: number, amount: number): number {
  switch (type) {
    case 'account.deposited':
      return balance + amount;
    case 'account.withdrawn':
      if (amount > balance) throw reject(`the balance is only ${balance} cents`);
      return balance - amount;
    default:
      throw reject(`an event of type ${JSON.stringify(type)} is unknown`);
  }
}
