//! One run of one libFuzzer program.

use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use guest::process::Group;
use guest::usage::Sample;

/// Longest input, in bytes. The bodies read no further than some hundred to two thousand.
const INPUT_BYTES_MAX: u32 = 4096;
/// An input that takes so long hangs, in seconds. Generous, as the machine may be stopped or busy.
const HANG_S: u32 = 120;
/// How often a run is looked at.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(500);
/// An interrupted program writes its figures and ends.
const END_LIMIT: Duration = Duration::from_secs(30);
/// How much is shown of what a failed run has said.
const TAIL_LINES: usize = 20;

/// A target's program and directories, all there.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) program: PathBuf,
    pub(super) seeds: PathBuf,
    pub(super) corpus: PathBuf,
    pub(super) artifacts: PathBuf,
    pub(super) log: PathBuf,
}

/// What a run came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Figures {
    pub(super) processor_s: f64,
    pub(super) executions: u64,
    pub(super) edges: u64,
    pub(super) features: u64,
}

impl Target {
    /// Runs it until it has used `time` of a processor.
    ///
    /// # Errors
    /// It ended before: it found an input that fails, or could not start.
    pub(super) fn run(&self, time: Duration) -> Result<Figures> {
        let mut command = Command::new(&self.program);
        command
            .arg(&self.corpus)
            .arg(&self.seeds)
            .arg(format!("-artifact_prefix={}/", self.artifacts.display()))
            .arg(format!("-max_len={INPUT_BYTES_MAX}"))
            .arg(format!("-timeout={HANG_S}"))
            .arg("-print_final_stats=1");
        let mut group = Group::start(&command, &self.log)?;
        let none = Sample::default();
        let processor_s = loop {
            let used = Sample::take(group.id()).map(|sample| sample.since(&none).cpu_s());
            if !group.is_running()? {
                bail!("ended early; {} says:\n{}", self.log.display(), tail(&group.output()));
            }
            let used = used?;
            if used >= time.as_secs_f64() {
                break used;
            }
            thread::sleep(LOOK_AGAIN_AFTER);
        };
        group.terminate(END_LIMIT)?;
        let said = group.output();
        // Its last breath may be a finding, too.
        if !said.contains("run interrupted") {
            bail!("did not end in order; {} says:\n{}", self.log.display(), tail(&said));
        }
        let (executions, edges, features) =
            parse(&said).with_context(|| format!("{} holds no figures", self.log.display()))?;
        Ok(Figures { processor_s, executions, edges, features })
    }
}

/// Executions, and the last edges and features, of libFuzzer's own words.
fn parse(said: &str) -> Option<(u64, u64, u64)> {
    let number = |text: &str| text.split_ascii_whitespace().next()?.parse::<u64>().ok();
    let last = |name: &str| said.rmatch_indices(name).find_map(|(at, _)| number(said.get(at + name.len()..)?));
    Some((last("stat::number_of_executed_units:")?, last(" cov: ")?, last(" ft: ")?))
}

fn tail(said: &str) -> String {
    let lines: Vec<&str> = said.lines().collect();
    lines.get(lines.len().saturating_sub(TAIL_LINES)..).unwrap_or_default().join("\n")
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn figures_are_the_last_that_were_said_even_on_a_line_cut_short() {
        let said = "#2\tINITED cov: 1000 ft: 2000 corp: 10/1Kb exec/s: 0 rss: 20Mb\n\
                    #54376\tREDUCE cov: 3778 ft: 8349 corp: 1244/115Kb lim: 185 exec/s: 13594==9== libFuzzer: run interrupted; exiting\n\
                    stat::number_of_executed_units: 54376\nstat::average_exec_per_sec:     13594\n";
        assert_eq!(parse(said), Some((54376, 3778, 8349)));
    }

    #[test]
    fn nothing_is_made_up_where_figures_are_missing() {
        assert_eq!(parse("#2\tINITED cov: 1000 ft: 2000 corp: 10/1Kb\n"), None);
        assert_eq!(parse("stat::number_of_executed_units: 5\n"), None);
        assert_eq!(parse(""), None);
    }
}
