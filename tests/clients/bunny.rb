# Publishes a message with Bunny, the client for Ruby, or reads a message.
#
# Usage: ruby bunny.rb publish URL  publishes a message to the exchange `bunny`, with the defaults of Bunny
#        ruby bunny.rb read URL     takes a message from the queue `bunny`, and prints its parts as JSON

require "bunny"
require "json"

command, url = ARGV
connection = Bunny.new(url)
connection.start
channel = connection.create_channel
case command
when "publish"
  channel.basic_publish(JSON.generate(orderId: 17, cents: 1200), "bunny", "orders")
when "read"
  _, properties, body = channel.queue("bunny", passive: true).pop
  puts JSON.generate(
    client: "bunny",
    id: properties.message_id,
    type: properties.type,
    content_type: properties.content_type,
    headers: properties.headers,
    data: JSON.parse(body),
  )
else
  abort "unknown command: #{command}"
end
connection.close
