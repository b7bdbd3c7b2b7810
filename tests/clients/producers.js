// Publishes one message with each client for JavaScript, with the defaults of the client. Each message goes to the
// exchange with the name of its client.
//
// Usage: node producers.js URL

const amqplib = require("amqplib");
const { Connection } = require("rabbitmq-client");
const { BrokerAsPromised } = require("rascal");

const ORDER = { orderId: 17, cents: 1200 };

async function publishWithAmqplib(url) {
  const connection = await amqplib.connect(url);
  const channel = await connection.createChannel();
  channel.publish("amqplib", "orders", Buffer.from(JSON.stringify(ORDER)));
  await channel.close();
  await connection.close();
}

async function publishWithRascal(url) {
  const host = decodeURIComponent(new URL(url).pathname.slice(1)) || "/";
  const broker = await BrokerAsPromised.create({
    vhosts: {
      [host]: {
        connection: { url },
        exchanges: { rascal: { assert: false, check: false } },
        publications: { orders: { exchange: "rascal", routingKey: "orders" } },
      },
    },
  });
  broker.on("error", (error) => {
    throw error;
  });
  const publication = await broker.publish("orders", ORDER);
  await new Promise((resolve, reject) => {
    publication.on("success", resolve).on("error", reject).on("return", reject);
  });
  await broker.shutdown();
}

async function publishWithRabbitmqClient(url) {
  const connection = new Connection(url);
  const publisher = connection.createPublisher({ confirm: true });
  await publisher.send({ exchange: "rabbitmq-client", routingKey: "orders" }, ORDER);
  await publisher.close();
  await connection.close();
}

async function main(url) {
  await publishWithAmqplib(url);
  await publishWithRabbitmqClient(url);
  await publishWithRascal(url);
}

main(process.argv[2]).catch((error) => {
  console.error(error);
  process.exit(1);
});
