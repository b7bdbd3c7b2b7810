//! The host between queues of RabbitMQ: real brokers, which tests kill, pause and change.

mod broker {
    mod amqp;
    mod chain;
    mod gaps;
    mod ingress;
    mod instances;
    mod publish;
    mod swap;
}
