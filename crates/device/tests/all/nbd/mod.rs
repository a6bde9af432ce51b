//! NBD: options, requests and replies against messages that are put together as the protocol's tables say, every refusal, and any
//! bytes.

mod examples;
mod greeting;
mod message;
mod numbers;
mod options;
mod properties;
mod replies;
mod requests;
mod work;
