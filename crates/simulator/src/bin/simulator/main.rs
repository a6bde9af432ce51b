//! Prints what the simulator says, and how that compares with what is measured.

mod validate;

use simulator::tables;
use std::process::ExitCode;
use values::Favour;

const USAGE: &str = "usage: cargo run --release -p simulator -- COMMAND
  vhost                   the vhost note's two tables beside the simulated ones
  policy [PROCESSORS…]    the policy against fixed placements; 1 to 128 processors without a number
  phases                  loads that change every few seconds
  validate VRINGD-BENCH   measures with that program, and compares";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["vhost"] => print!("{}", tables::vhost()),
        ["policy", numbers @ ..] => {
            let numbers: Vec<u16> = numbers.iter().filter_map(|it| it.parse().ok()).collect();
            let processors = if numbers.is_empty() { vec![1, 2, 4, 8, 16, 32, 64, 128] } else { numbers };
            print!("{}", tables::placements(&processors, &Favour::ALL));
        }
        ["phases"] => {
            for processors in [2, 16, 64] {
                let all = tables::phases(processors, &[1, 16, 2, 64, 4, 64], Favour::Balance);
                println!("{}", tables::phases_table(processors, &all));
            }
        }
        ["validate", program] => match validate::validate(program) {
            Ok(text) => print!("{text}"),
            Err(error) => {
                eprintln!("{error}");
                return ExitCode::FAILURE;
            }
        },
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}
