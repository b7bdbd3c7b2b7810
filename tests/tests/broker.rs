//! Tests of the host between RabbitMQ queues. The brokers are real; tests kill, pause and change them.

mod broker {
    mod amqp;
    mod chain;
    mod gaps;
    mod ingress;
    mod instances;
    mod lost_numbers;
    mod publish;
    mod swap;
}
