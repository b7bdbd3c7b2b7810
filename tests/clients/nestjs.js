// Uses the client and the server of NestJS for RabbitMQ, with their defaults. Prints the result as JSON.
//
// Usage: node nestjs.js emit URL           declares the queue `nestjs`, and publishes an event to it
//        node nestjs.js send URL           sends a request to the queue `nestjs`, and waits for the reply in `replies`
//        node nestjs.js receive URL QUEUE  receives a message of the type `tally` that Ordain has published

const { pathToFileURL } = require("url");

const TIMEOUT_MS = 60_000;

/** Imports a package in the form of an ES module, which the variable `NODE_PATH` alone does not find. */
function load(name) {
  return import(pathToFileURL(require.resolve(name)));
}

async function publish(url, more, call) {
  const { ClientRMQ } = await load("@nestjs/microservices");
  const { firstValueFrom, timeout } = await load("rxjs");
  const client = new ClientRMQ({ urls: [url], queue: "nestjs", ...more });
  const result = await firstValueFrom(call(client).pipe(timeout(TIMEOUT_MS)));
  await client.close();
  return result ?? null;
}

function emit(url) {
  return publish(url, {}, (client) => client.emit("order.paid", { orderId: 17, cents: 1200 }));
}

function send(url) {
  return publish(url, { replyQueue: "replies" }, (client) =>
    client.send({ cmd: "price" }, { orderId: 18 }),
  );
}

async function receive(url, queue) {
  const { ServerRMQ } = await load("@nestjs/microservices");
  // A message of Ordain is not in the envelope of NestJS: the pattern is the type of the message.
  const deserializer = { deserialize: (data, { type }) => ({ pattern: type, data }) };
  const server = new ServerRMQ({ urls: [url], queue, noAssert: true, deserializer });
  const received = new Promise((resolve, reject) => {
    server.addHandler(
      "tally",
      async (data, context) => {
        const { properties } = context.getMessage();
        resolve({ data, id: properties.messageId, key: properties.headers["X-Key"] });
      },
      true,
    );
    server.listen((error) => error && reject(error));
    setTimeout(reject, TIMEOUT_MS, new Error("no message arrived")).unref();
  });
  const message = await received;
  await server.close();
  return message;
}

async function main(name, ...args) {
  const { Logger } = await load("@nestjs/common");
  // The log of NestJS would be a part of the output.
  Logger.overrideLogger(false);
  console.log(JSON.stringify(await { emit, send, receive }[name](...args)));
}

main(...process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
