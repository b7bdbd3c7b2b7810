//! Tests of the host with real RabbitMQ and Redis servers, which the tests kill, pause and change. Some tests need only
//! one of these servers, or none.

mod broker {
    mod amqp;
    mod chain;
    mod clients;
    mod gaps;
    mod ingress;
    mod instances;
    mod lost_numbers;
    mod publish;
    mod rotated_sinks;
    mod swap;
}
