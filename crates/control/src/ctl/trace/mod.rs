//! `vringd ctl trace`: slow requests, as they happen, and where their time went.

mod words;

use super::error::CtlError;
use super::follow::Interrupt;
use crate::client::{Client, ClientError};
use crate::model::trace::{NewTrace, Trace, TraceNews};
use crate::model::{Info, ParseError, Span};
use hyper::Method;
use serde_json::json;
use std::io::Write;
use std::time::{Duration, Instant};

/// Time between two looks: what is kept of a trace meanwhile is bounded.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How long a daemon that is being upgraded may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// As the name of an export: all of them.
const ALL: &str = "all";

/// What to trace, and for how long.
#[derive(Debug, Clone, clap::Args)]
pub struct TraceArgs {
    /// Only requests of this export.
    pub name: Option<String>,

    /// Only requests of this export; `all`, or nothing, is all of them.
    #[arg(long, value_name = "NAME", conflicts_with = "name")]
    pub export: Option<String>,

    /// Show requests that take this long or longer, as in 5ms, with the time that they can have waited in their ring.
    #[arg(long, value_name = "TIME", value_parser = bound)]
    pub slower_than: Span,

    /// Stop after this many requests.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,

    /// Stop after this time, as in 30s.
    #[arg(long = "for", value_name = "TIME")]
    pub duration: Option<Span>,
}

fn bound(text: &str) -> Result<Span, String> {
    let slower_than = text.parse().map_err(|error: ParseError| error.to_string())?;
    NewTrace { slower_than, export: None }.check().map_err(|error| error.message)?;
    Ok(slower_than)
}

impl TraceArgs {
    fn new_trace(&self) -> NewTrace {
        let export = self.name.clone().or_else(|| self.export.clone().filter(|name| name != ALL));
        NewTrace { slower_than: self.slower_than, export }
    }
}

pub(super) fn run(args: &TraceArgs, client: &Client, json: bool, out: &mut dyn Write) -> Result<(), CtlError> {
    let interrupt = Interrupt::watch();
    let new = args.new_trace();
    let mut tracing = Tracing::begin(client, &new)?;
    let mut teller = Teller { json, out, new: &new, told: 0, all: TraceNews::default(), began: Instant::now() };
    let told = follow(args, &mut tracing, &mut teller, || interrupt.came());
    // Whether there was more to tell or not.
    tracing.end();
    match told {
        // What was seen so far is worth as much.
        Err(error @ CtlError::Client(_)) => teller.sum_up().and(Err(error)),
        Err(error) => Err(error),
        Ok(()) => teller.sum_up(),
    }
}

fn follow(
    args: &TraceArgs,
    tracing: &mut Tracing<'_>,
    teller: &mut Teller<'_>,
    mut is_enough: impl FnMut() -> bool,
) -> Result<(), CtlError> {
    teller.begin()?;
    let end = args.duration.map(|span| teller.began + span.0);
    loop {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        std::thread::sleep(left.map_or(LOOK_EVERY, |left| left.min(LOOK_EVERY)));
        let is_last = is_enough() || end.is_some_and(|end| Instant::now() >= end);
        let (news, note) = tracing.take()?;
        teller.note(note)?;
        if teller.tell(&news, args.count)? || is_last {
            return Ok(());
        }
    }
}

/// A trace of the daemon's, begun anew when it has ended against our will.
struct Tracing<'a> {
    client: &'a Client,
    new: &'a NewTrace,
    trace: Trace,
    upgrades: u64,
}

impl<'a> Tracing<'a> {
    fn begin(client: &'a Client, new: &'a NewTrace) -> Result<Tracing<'a>, ClientError> {
        let upgrades = client.get::<Info>("/v1/info")?.upgrades;
        let trace = client.send(Method::POST, "/v1/traces", new)?;
        Ok(Tracing { client, new, trace, upgrades })
    }

    /// The news, and what is to be said before them.
    fn take(&mut self) -> Result<(TraceNews, Option<String>), ClientError> {
        let by = Instant::now() + PATIENCE;
        loop {
            match self.client.post(&format!("/v1/traces/{}/take", self.trace.id)) {
                Ok(news) => return Ok((news, None)),
                Err(ClientError::Refused { code, .. }) if code == "no-such-trace" => {
                    let note = self.begin_again()?;
                    return Ok((TraceNews::default(), Some(note)));
                }
                // A connection that the old program had accepted ends in the middle of anything.
                Err(ClientError::Lost { .. }) if Instant::now() < by => std::thread::sleep(LOOK_EVERY),
                Err(error) => return Err(error),
            }
        }
    }

    fn begin_again(&mut self) -> Result<String, ClientError> {
        let info: Info = self.client.get("/v1/info")?;
        self.trace = self.client.send(Method::POST, "/v1/traces", self.new)?;
        let is_upgraded = std::mem::replace(&mut self.upgrades, info.upgrades) != info.upgrades;
        Ok(if is_upgraded {
            let version = info.version;
            format!(
                "the daemon was upgraded to {version}: the trace goes on, without what was under way or not shown by then"
            )
        } else {
            "the trace had ended, as its news were not taken for seconds: it goes on, without what was slow meanwhile"
                .to_owned()
        })
    }

    /// Rings need note nothing any more. If they are not told, they find out.
    fn end(&self) {
        let _ = self.client.order(Method::DELETE, &format!("/v1/traces/{}", self.trace.id));
    }
}

/// Tells a person or a program.
struct Teller<'a> {
    json: bool,
    out: &'a mut dyn Write,
    new: &'a NewTrace,
    /// Requests that were shown.
    told: u64,
    /// All counts and times so far, without requests.
    all: TraceNews,
    began: Instant,
}

impl Teller<'_> {
    fn begin(&mut self) -> Result<(), CtlError> {
        if !self.json {
            writeln!(self.out, "{}; Ctrl-C ends it", words::what(self.new))?;
        }
        Ok(self.out.flush()?)
    }

    fn line(&mut self, value: &serde_json::Value) -> Result<(), CtlError> {
        serde_json::to_writer(&mut *self.out, value).map_err(std::io::Error::from)?;
        Ok(writeln!(self.out)?)
    }

    fn note(&mut self, note: Option<String>) -> Result<(), CtlError> {
        let Some(note) = note else { return Ok(()) };
        if self.json { self.line(&json!({ "note": note })) } else { Ok(writeln!(self.out, "-- {note}")?) }
    }

    /// Whether that were as many as were wanted.
    fn tell(&mut self, news: &TraceNews, most: Option<u64>) -> Result<bool, CtlError> {
        let room = most.map_or(u64::MAX, |most| most - self.told);
        let shown = usize::try_from(room).unwrap_or(usize::MAX).min(news.requests.len());
        for request in news.requests.iter().take(shown) {
            if self.json {
                self.line(&json!({ "request": request }))?;
            } else {
                writeln!(self.out, "{}", words::request(request))?;
            }
        }
        self.told += shown as u64;
        let lost = news.lost;
        if lost > 0 && self.json {
            self.line(&json!({ "lost": lost }))?;
        } else if lost > 0 {
            writeln!(self.out, "-- {lost} more not shown")?;
        }
        self.out.flush()?;
        let all = &mut self.all;
        (all.lost, all.slow, all.answered) = (all.lost + lost, all.slow + news.slow, all.answered + news.answered);
        all.times = all.times.plus(&news.times);
        Ok(most.is_some_and(|most| self.told >= most))
    }

    fn sum_up(&mut self) -> Result<(), CtlError> {
        let seconds = self.began.elapsed().as_secs_f64();
        let TraceNews { lost, slow, answered, times, .. } = self.all;
        if self.json {
            let summary =
                json!({ "slow": slow, "answered": answered, "lost": lost, "seconds": seconds, "times": times });
            self.line(&json!({ "summary": summary }))?;
        } else {
            write!(self.out, "{}", words::summary(self.new, (slow, answered, lost), seconds, &times))?;
        }
        Ok(self.out.flush()?)
    }
}
