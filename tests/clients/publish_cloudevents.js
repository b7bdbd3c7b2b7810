// Publishes a CloudEvent in each form of the SDK for JavaScript to the exchange `cases`. The name of the form is the id,
// the subject and the routing key. The SDK has no form for AMQP, so the headers of HTTP become headers of the message.
//
// Usage: node publish_cloudevents.js URL

const amqplib = require("amqplib");
const { CloudEvent, HTTP } = require("cloudevents");

function event(form) {
  return new CloudEvent({
    id: form,
    type: "order.paid",
    source: "/shop",
    subject: form,
    time: "2025-11-25T12:00:00.125Z",
    datacontenttype: "application/json",
    tenant: "blue",
    data: { n: 1, city: "Köln" },
  });
}

async function main(url) {
  const connection = await amqplib.connect(url);
  const channel = await connection.createConfirmChannel();
  for (const [form, convert] of [
    ["javascript-binary", HTTP.binary],
    ["javascript-structured", HTTP.structured],
  ]) {
    const { headers, body } = convert(event(form));
    const { "content-type": contentType, ...others } = headers;
    const text = typeof body === "string" ? body : JSON.stringify(body);
    channel.publish("cases", form, Buffer.from(text), { contentType, headers: others });
  }
  await channel.waitForConfirms();
  await connection.close();
}

main(process.argv[2]).catch((error) => {
  console.error(error);
  process.exit(1);
});
