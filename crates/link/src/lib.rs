//! vhost-user sessions: memory table, features, rings that appear and vanish.
//!
//! This room turns the frontend's messages into calls on a [`Target`]. It serves no request and knows no device; a
//! frontend that disconnects or misspeaks ends its session here and nothing else.
