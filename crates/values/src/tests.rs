use super::*;
use proptest::prelude::*;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

fn refused<T: FromStr + fmt::Debug>(texts: &[&str]) {
    for text in texts {
        assert!(text.parse::<T>().is_err(), "`{text}` must be refused");
    }
}

#[test]
fn poll() {
    assert_eq!("off".parse(), Ok(Poll::Off));
    assert_eq!("fixed=20".parse(), Ok(Poll::Fixed(20)));
    assert_eq!("adaptive".parse(), Ok(Poll::Adaptive(200)));
    assert_eq!("adaptive=1000000".parse(), Ok(Poll::Adaptive(1_000_000)));
    refused::<Poll>(&["", "on", "fixed", "fixed=", "fixed=0", "fixed=+1", "fixed=1000001", "off=1", "adaptive=-1"]);
}

#[test]
fn execution() {
    assert_eq!("pool=4".parse(), Ok(Execution::Pool(4)));
    assert_eq!("uring".parse(), Ok(Execution::Uring));
    refused::<Execution>(&["", "pool", "pool=0", "pool=257", "threads", "Auto"]);
}

#[test]
fn placement_reads_a_bare_number() {
    assert_eq!("per-queue".parse(), Ok(Placement::PerQueue));
    assert_eq!(serde_json::from_str::<Placement>("3").unwrap(), Placement::Workers(3));
    assert_eq!(serde_json::to_string(&Placement::Workers(3)).unwrap(), "\"3\"");
    refused::<Placement>(&["0", "257", "per_queue", "-1"]);
    assert!(serde_json::from_str::<Placement>("-1").is_err());
}

#[test]
fn a_lun_has_a_target_that_may_be_left_out() {
    for (text, target, number) in [("0", 0, 0), ("16383", 0, 16383), ("0:7", 0, 7), ("255:1", 255, 1)] {
        assert_eq!(text.parse(), Ok(Lun { target, number }), "{text}");
    }
    assert_eq!(serde_json::from_str::<Lun>("3").unwrap(), Lun { target: 0, number: 3 });
    assert_eq!(serde_json::to_string(&Lun { target: 1, number: 3 }).unwrap(), "\"1:3\"");
    refused::<Lun>(&["", ":", "0:", ":0", "16384", "256:0", "-1", "+1", "1:2:3"]);
}

#[test]
fn byte_size() {
    for (text, bytes) in [("0", 0), ("512", 512), ("1K", 1024), ("2MiB", 2 << 20), ("3g", 3 << 30), ("1TiB", 1 << 40)] {
        assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
    }
    assert_eq!("7B".parse(), Ok(ByteSize(7)));
    refused::<ByteSize>(&["", "G", "1.5G", "1GB", "1 G", "99999999999T", "-1", "iB", "1iB", "1X"]);
    assert_eq!(ByteSize(10 << 30).to_string(), "10G");
    assert_eq!(ByteSize(1536).to_string(), "1536");
}

#[test]
fn span() {
    assert_eq!("100us".parse(), Ok(Span(Duration::from_micros(100))));
    assert_eq!("2s".parse(), Ok(Span(Duration::from_secs(2))));
    refused::<Span>(&["", "100", "us", "1.5ms", "1m", "99999999999999999999s", "-1us"]);
    assert_eq!(Span(Duration::from_micros(1500)).to_string(), "1500us");
    assert_eq!(Span::default().to_string(), "0ns");
}

#[test]
fn cpu_list() {
    let list: CpuList = "5,0-3,2".parse().unwrap();
    assert_eq!(list.cpus(), [0, 1, 2, 3, 5]);
    assert_eq!(list.to_string(), "0-3,5");
    refused::<CpuList>(&["", ",", "1-", "3-1", "8192", "0-99999", "a", "1,,2"]);
    assert!(CpuList::new([]).is_none());
}

#[test]
fn file_mode() {
    assert_eq!("0660".parse(), Ok(FileMode(0o660)));
    assert_eq!(FileMode(0o600).to_string(), "0600");
    refused::<FileMode>(&["", "0680", "4755", "00660", "rw"]);
}

#[test]
fn an_error_repeats_only_the_beginning_of_a_long_text() {
    let error = "x".repeat(10_000).parse::<Poll>().unwrap_err();
    assert!(error.to_string().len() < 300, "{error}");
}

fn round_trip<T: FromStr<Err = ParseError> + fmt::Display + PartialEq + fmt::Debug>(
    value: &T,
) -> Result<(), TestCaseError> {
    let read = value.to_string().parse::<T>();
    prop_assert_eq!(read.as_ref(), Ok(value));
    Ok(())
}

proptest! {
    #[test]
    fn what_is_shown_can_be_read(number: u64, cpus in prop::collection::vec(0..=CpuList::CPU_MAX, 1..40), us in 1..1_000_001u32) {
        round_trip(&ByteSize(number))?;
        round_trip(&Span(Duration::from_nanos(number)))?;
        round_trip(&CpuList::new(cpus).unwrap())?;
        round_trip(&Poll::Adaptive(us))?;
        round_trip(&Poll::Fixed(us))?;
    }

    #[test]
    fn no_text_panics(text in "\\PC*") {
        let _ = (text.parse::<Poll>(), text.parse::<Execution>(), text.parse::<Placement>());
        let _ = (text.parse::<ByteSize>(), text.parse::<Span>(), text.parse::<CpuList>(), text.parse::<FileMode>());
    }
}
