//! A directory that speaks 9P, from the virtqueue to the file, by a client without a guest.

mod client;
mod flush;
mod guest;
mod hostile;
mod limits;
mod rings;
mod sessions;
