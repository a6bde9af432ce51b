//! `ctl` as it is typed.

use super::Served;

/// Runs `vringd ctl` with these words against the socket: the exit status and what it printed.
pub(crate) fn ctl(served: &Served, words: &str) -> (u8, String) {
    ctl_words(&served.socket(), &words.split(' ').collect::<Vec<_>>())
}

pub(crate) fn ctl_words(socket: &std::path::Path, words: &[&str]) -> (u8, String) {
    #[derive(Debug, clap::Parser)]
    #[command(name = "vringd-ctl")]
    struct Program {
        #[command(flatten)]
        args: control::ctl::Args,
    }
    let socket = socket.to_str().unwrap();
    let words = ["vringd-ctl", "--control", socket].into_iter().chain(words.iter().copied());
    let args = match <Program as clap::Parser>::try_parse_from(words) {
        Ok(program) => program.args,
        Err(error) => return (u8::try_from(error.exit_code()).unwrap(), error.to_string()),
    };
    let mut out = Vec::new();
    match control::ctl::perform(&args, &mut out, false) {
        Ok(()) => (0, String::from_utf8(out).unwrap()),
        Err(error) => (error.exit_status(), error.to_string()),
    }
}
