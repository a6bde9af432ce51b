//! `cargo xtask book`: the documents as pages, by mdbook. Read without a network.

mod api;
mod dead;
mod stage;
mod summary;

pub(crate) use summary::check;

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::step::{run, workspace};
use crate::tools::Tool;

const TASK: &str = "book";
const MDBOOK: Tool =
    Tool { name: "mdbook", version: "0.5.4", options: &["--no-default-features", "--features", "search"] };
/// Draws the diagrams, in the reader's browser, by a script that lies in the book.
const MERMAID: Tool = Tool { name: "mdbook-mermaid", version: "0.17.1", options: &[] };
/// How the book looks: mdbook's configuration, and a style sheet.
const LOOKS: &str = "docs/book";

/// Makes the book in `target/book`.
pub(crate) fn make() -> Result<()> {
    let target = workspace().join("target");
    let (sources, book) = (target.join("book-src"), target.join("book"));
    for place in [&sources, &book] {
        if place.exists() {
            fs::remove_dir_all(place)?;
        }
    }
    let mdbook = MDBOOK.install(TASK)?;
    let mermaid = MERMAID.install(TASK)?;
    let pages = sources.join("src");
    fs::create_dir_all(&pages)?;
    stage::stage(&pages)?;
    for entry in fs::read_dir(workspace().join(LOOKS))? {
        let entry = entry?;
        fs::copy(entry.path(), sources.join(entry.file_name()))?;
    }
    scripts(&mermaid, &pages)?;
    let mut build = Command::new(&mdbook);
    build.args(["build", "--dest-dir"]).arg(&book).arg(&sources);
    // It finds mdbook-mermaid by its name.
    let tools = mdbook.parent().context("a program lies in a directory")?.to_owned();
    let path = env::var_os("PATH").unwrap_or_default();
    build.env("PATH", env::join_paths(std::iter::once(tools).chain(env::split_paths(&path)))?);
    run(TASK, &mut build)?;
    let links = dead::check(&book)?;
    println!("{TASK}: {links} links lead somewhere; read {}", book.join("index.html").display());
    Ok(())
}

/// The scripts that draw. The program adds them to every page of a book that it is let into: it gets one of its own.
fn scripts(mermaid: &Path, pages: &Path) -> Result<()> {
    let scratch = tempfile::tempdir()?;
    fs::write(scratch.path().join("book.toml"), "[book]\n")?;
    run(TASK, Command::new(mermaid).arg("install").arg(scratch.path()).env("RUST_LOG", "warn"))?;
    for script in stage::SCRIPTS {
        fs::copy(scratch.path().join(script), pages.join(script))?;
    }
    Ok(())
}
