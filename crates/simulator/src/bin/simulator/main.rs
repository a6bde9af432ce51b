//! Prints what the simulator says, and how that compares with what is measured.

mod validate;

use simulator::{Shape, tables};
use std::process::ExitCode;
use values::Favour;

const USAGE: &str = "usage: cargo run --release -p simulator -- COMMAND
  vhost                   the vhost note's two tables beside the simulated ones
  jobs                    the note's loads on a virtio-blk device and on a SCSI device of ours, in memory
  policy PROCESSORS…      the policy against fixed placements
  balance PROCESSORS…     the same with the default of what is favoured alone
  why LOAD PROCESSORS     what the policy does about an even, zipf or bursty load, and why
  together                workers and clients on the same processors
  phases                  loads that change every few seconds
  validate VRINGD-BENCH [scsi]  measures with that program, a SCSI device if so, and compares";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["vhost"] => print!("{}", tables::vhost()),
        ["jobs"] => print!("{}", tables::jobs()),
        [command @ ("policy" | "balance"), numbers @ ..] => {
            let processors: Vec<u16> = numbers.iter().filter_map(|it| it.parse().ok()).collect();
            let favours: &[Favour] = if *command == "policy" { &Favour::ALL } else { &[Favour::Balance] };
            print!("{}", tables::placements(&processors, favours));
        }
        ["why", load, processors] => {
            let shape = Shape::ALL.into_iter().find(|it| it.name().eq_ignore_ascii_case(load));
            let (Some(shape), Ok(processors)) = (shape, processors.parse()) else {
                eprintln!("{USAGE}");
                return ExitCode::from(2);
            };
            for outcome in tables::against(shape, processors, &[Favour::Balance]).policy {
                for it in &outcome.verdicts {
                    let (seconds, cause, moves) = (it.at_ns as f64 / 1e9, it.cause, it.moves.len());
                    println!("{seconds:6.1} s  {cause:?}  {moves} moves, {} workers: {}", it.workers, it.why());
                }
            }
        }
        ["together"] => print!("{}", tables::together()),
        ["phases"] => {
            for processors in [2, 16, 64] {
                let all = tables::phases(processors, &[1, 16, 2, 64, 4, 64], Favour::Balance);
                println!("{}", tables::phases_table(processors, &all));
            }
        }
        ["validate", program, rest @ ..] if matches!(rest, [] | ["scsi"]) => {
            match validate::validate(program, !rest.is_empty()) {
                Ok(text) => print!("{text}"),
                Err(error) => {
                    eprintln!("{error}");
                    return ExitCode::FAILURE;
                }
            }
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}
