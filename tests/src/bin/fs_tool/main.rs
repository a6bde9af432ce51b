//! What a guest does to a directory of the host where a shell does not suffice. The tests run it
//! inside their guests; it fails loudly, and its exit status is what they look at.

mod crowd;
mod escape;
mod held;
mod locks;
mod pair;
mod smoke;
mod walk;

use std::env;
use std::path::Path;

use anyhow::{Result, bail};

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["smoke", directory] => smoke::run(Path::new(directory), &smoke::FUSE, smoke::Mapping::Private),
        ["smoke", "--shared-mapping", directory] => {
            smoke::run(Path::new(directory), &smoke::FUSE, smoke::Mapping::Shared)
        }
        ["smoke", "--9p", directory] => smoke::run(Path::new(directory), &smoke::P9, smoke::Mapping::Private),
        ["smoke", "--9p", "--shared-mapping", directory] => {
            smoke::run(Path::new(directory), &smoke::P9, smoke::Mapping::Shared)
        }
        ["walk", directory] => walk::run(Path::new(directory)),
        ["storm", directory, rounds] => crowd::storm(Path::new(directory), rounds.parse()?),
        ["escape", directory, outside] => escape::run(Path::new(directory), Path::new(outside)),
        ["held", file, said, told] => held::run(Path::new(file), Path::new(said), Path::new(told)),
        ["count", kind, file, rounds] => locks::count(kind.parse()?, Path::new(file), rounds.parse()?),
        ["hold", kind, file, access, said, told] => {
            locks::hold(kind.parse()?, Path::new(file), access.parse()?, Path::new(said), Path::new(told))
        }
        ["try", kind, file, access] => locks::attempt(kind.parse()?, Path::new(file), access.parse()?),
        ["wait", kind, file, access] => locks::wait(kind.parse()?, Path::new(file), access.parse()?),
        ["pair", point, options, ref server @ ..] => pair::run(Path::new(point), options, server),
        ["holder", file] => locks::holder(Path::new(file)),
        _ => bail!("these are not words of this program: {words:?}"),
    }
}
