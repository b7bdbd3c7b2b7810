// Takes a message from a queue, reads it with the SDK for JavaScript, and prints the event as JSON. The SDK has no form
// for AMQP, so the headers of the message become headers of HTTP.
//
// Usage: node read_cloudevent.js URL QUEUE

const amqplib = require("amqplib");
const { HTTP } = require("cloudevents");

async function main(url, queue) {
  const connection = await amqplib.connect(url);
  const channel = await connection.createChannel();
  const { properties, content } = await channel.get(queue, { noAck: true });
  await connection.close();
  const headers = { "content-type": properties.contentType };
  for (const [name, value] of Object.entries(properties.headers)) {
    headers[name.replace("cloudEvents:", "ce-").toLowerCase()] = value;
  }
  const event = HTTP.toEvent({ headers, body: content.toString() });
  console.log(JSON.stringify(event));
}

main(...process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
