//! Tests of the host with real RabbitMQ servers, which the tests kill, pause and change.

mod broker {
    mod amqp;
    mod chain;
    mod gaps;
    mod ingress;
    mod instances;
    mod lost_numbers;
    mod publish;
    mod rotated_sinks;
    mod swap;
}
