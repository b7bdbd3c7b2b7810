import { handler, put, reject } from '@ordain/sdk';

/** Returns the data of an event in its checked form. An error rejects the event. */
function change(data) {
  const { amount_cents } = data ?? {};
  if (typeof amount_cents !== 'number' || amount_cents <= 0) {
    throw new TypeError('"amount_cents" must be a number greater than 0');
  }
  return { amount_cents };
}

// Each key is an account. The state of a key is `{ balance_cents }`.
export default handler(
  (event, account = { balance_cents: 0 }) => {
    const balance_cents = balanceAfter(event.type, account.balance_cents, event.data.amount_cents);
    return put({ balance_cents }).emit('changes', 'account.changed', { balance_cents });
  },
  { data: change },
);

function balanceAfter(type, balance, amount) {
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
