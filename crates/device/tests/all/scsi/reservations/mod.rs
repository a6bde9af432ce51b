//! Reservations: what each action does, all of them against a second model, and their bytes.

mod examples;
mod file;
mod model;
mod oracle;
mod requests;
