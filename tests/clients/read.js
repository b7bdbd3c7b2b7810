// Takes a message with each client for JavaScript from the queue with the name of the client, and prints the parts of
// the message as JSON, one line for each client.
//
// Usage: node read.js URL

const amqplib = require("amqplib");
const { Connection } = require("rabbitmq-client");
const { BrokerAsPromised } = require("rascal");

const TIMEOUT_MS = 60_000;

function print(client, { messageId, type, contentType, headers }, data) {
  const message = { client, id: messageId, type, content_type: contentType, headers, data };
  console.log(JSON.stringify(message));
}

async function readWithAmqplib(url) {
  const connection = await amqplib.connect(url);
  const channel = await connection.createChannel();
  const { properties, content } = await channel.get("amqplib", { noAck: true });
  await connection.close();
  print("amqplib", properties, JSON.parse(content.toString()));
}

async function readWithRascal(url) {
  const host = decodeURIComponent(new URL(url).pathname.slice(1)) || "/";
  const broker = await BrokerAsPromised.create({
    vhosts: {
      [host]: {
        connection: { url },
        queues: { rascal: { assert: false, check: false } },
        subscriptions: { messages: { queue: "rascal" } },
      },
    },
  });
  broker.on("error", (error) => {
    throw error;
  });
  const subscription = await broker.subscribe("messages");
  await new Promise((resolve, reject) => {
    subscription.on("error", reject).on("message", (message, content, ackOrNack) => {
      ackOrNack();
      // rascal decodes the body, because it knows the content type.
      print("rascal", message.properties, content);
      resolve();
    });
    setTimeout(reject, TIMEOUT_MS, new Error("no message arrived")).unref();
  });
  await broker.shutdown();
}

async function readWithRabbitmqClient(url) {
  const connection = new Connection(url);
  const message = await connection.basicGet({ queue: "rabbitmq-client", noAck: true });
  await connection.close();
  // rabbitmq-client decodes the body, because it knows the content type.
  print("rabbitmq-client", message, message.body);
}

async function main(url) {
  await readWithAmqplib(url);
  await readWithRascal(url);
  await readWithRabbitmqClient(url);
}

main(process.argv[2]).catch((error) => {
  console.error(error);
  process.exit(1);
});
