//! Load generators: frontends without a virtual machine.
