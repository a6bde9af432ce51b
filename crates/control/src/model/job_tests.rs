use super::*;

fn job(text: &str) -> Result<NewJob, String> {
    serde_json::from_str(text).map_err(|error: serde_json::Error| error.to_string())
}

fn fault(text: &str) -> String {
    job(text).unwrap().check().expect_err(text).to_string()
}

#[test]
fn what_is_left_out_has_its_default() {
    let backup =
        job(r#"{"kind": "backup", "disks": [{"disk": "db", "target": "/b/db.qcow2"}], "limit": "1M"}"#).unwrap();
    let copy = CopyDisk {
        disk: "db".into(),
        target: "/b/db.qcow2".into(),
        format: CopyFormat::Qcow2,
        force: false,
        bitmap: None,
        backing: None,
    };
    assert_eq!(backup, NewJob::Backup(NewBackup { disks: vec![copy.clone()], limit: Some(ByteSize(1 << 20)) }));
    assert_eq!((backup.kind(), backup.limit_bytes_per_second()), (JobKind::Backup, Some(1 << 20)));
    let mirror =
        job(r#"{"kind": "mirror", "disk": "db", "target": "/b/db.raw", "format": "raw", "limit": 0}"#).unwrap();
    assert_eq!(mirror.copies(), [CopyDisk { target: "/b/db.raw".into(), format: CopyFormat::Raw, ..copy }]);
    assert_eq!((mirror.kind(), mirror.limit_bytes_per_second()), (JobKind::Mirror, None));
    let text = r#"{"kind": "backup", "disks": [{"disk": "a", "target": "/1", "bitmap": "daily", "backing": "/0"}]}"#;
    let incremental = job(text).unwrap();
    let NewJob::Backup(new) = &incremental else { panic!("{incremental:?}") };
    assert_eq!((new.disks[0].bitmap.as_deref(), new.disks[0].backing.as_deref()), (Some("daily"), Some("/0".as_ref())));
    assert_eq!(
        (incremental.copy_field(1, "backing"), mirror.copy_field(0, "target")),
        ("disks[1].backing".into(), "target".into())
    );
    let stream = job(r#"{"kind": "stream", "disk": "db", "limit": "1M"}"#).unwrap();
    assert_eq!((stream.of_chain(), stream.copies(), mirror.of_chain()), (Some("db"), vec![], None));
    assert_eq!((stream.kind(), stream.limit_bytes_per_second()), (JobKind::Stream, Some(1 << 20)));
    let commit = job(r#"{"kind": "commit", "disk": "db"}"#).unwrap();
    assert_eq!((commit.kind(), commit.of_chain()), (JobKind::Commit, Some("db")));
    for new in [backup, incremental, mirror, stream, commit] {
        new.check().unwrap();
        assert_eq!(job(&serde_json::to_string(&new).unwrap()).unwrap(), new);
    }
}

#[test]
fn a_field_that_cannot_be_read_is_named() {
    for (text, message) in [
        (r#"{"disks": []}"#, "missing field `kind`"),
        (r#"{"kind": "rebase"}"#, "invalid field `kind`: \"rebase\" is none of backup, mirror, stream, commit, pull"),
        (r#"{"kind": "commit"}"#, "missing field `disk`"),
        (r#"{"kind": "stream", "disk": "a", "target": "/a"}"#, "unknown field `target`"),
        (r#"{"kind": "backup"}"#, "missing field `disks`"),
        (r#"{"kind": "backup", "disks": [], "disk": "a"}"#, "unknown field `disk`"),
        (r#"{"kind": "backup", "disks": [{"disk": "a"}]}"#, "invalid field `disks[0].target`"),
        (r#"{"kind": "mirror", "disk": "a", "target": "/a", "format": "vmdk"}"#, "invalid field `format`"),
        (r#"{"kind": "mirror", "disk": "a", "target": "/a", "limit": "fast"}"#, "invalid field `limit`"),
        (r#"{"kind": "mirror", "disk": "a", "target": "/a", "bitmap": "x"}"#, "unknown field `bitmap`"),
        (r#"{"kind": "mirror", "disk": "a", "target": "/a", "backing": "/x"}"#, "unknown field `backing`"),
        (
            r#"{"kind": "backup", "disks": [{"disk": "a", "target": "/a", "bitmap": 1}]}"#,
            "invalid field `disks[0].bitmap`",
        ),
    ] {
        let error = job(text).unwrap_err();
        assert!(error.starts_with(message), "{text}: {error}");
    }
}

#[test]
fn every_bad_field_is_named_with_the_fix() {
    let backup = |disks: &str| fault(&format!(r#"{{"kind": "backup", "disks": [{disks}]}}"#));
    assert_eq!(backup(""), "disks: must name at least one disk");
    let (a, b) = (r#"{"disk": "a", "target": "/a"}"#, r#"{"disk": "b", "target": "/a"}"#);
    assert_eq!(backup(&format!("{a}, {a}")), "disks[1].disk: `a` is in the list already");
    let twice = "disks[1].target: /a is that of `a` already: give each disk a file of its own";
    assert_eq!(backup(&format!("{a}, {b}")), twice);
    assert!(backup(r#"{"disk": "", "target": "/a"}"#).starts_with("disks[0].disk: must be 1 to 64 letters"));
    assert!(backup(r#"{"disk": "a", "target": "a"}"#).starts_with("disks[0].target: must be an absolute path"));
    let mirror = |disk: &str, target: &str, limit: &str| {
        fault(&format!(r#"{{"kind": "mirror", "disk": "{disk}", "target": "{target}", "limit": "{limit}"}}"#))
    };
    assert!(mirror("a b", "/a", "1M").starts_with("disk: must be"));
    assert!(mirror("a", "", "1M").starts_with("target: must be an absolute path"));
    let slow = "limit: must be 4096 to 1125899906842624 bytes a second, or 0 for no limit, not 100";
    assert_eq!(mirror("a", "/a", "100"), slow);
}

#[test]
fn a_backing_file_goes_with_a_bitmap_and_qcow2() {
    let backup = |disks: &str| job(&format!(r#"{{"kind": "backup", "disks": [{disks}]}}"#)).unwrap().check();
    let fault = |disks: &str| backup(disks).expect_err(disks).to_string();
    let a = r#""disk": "a", "target": "/a.1""#;
    let b = r#""disk": "b", "target": "/b.1", "bitmap": "x""#;
    assert_eq!(backup(&format!(r#"{{{a}, "bitmap": "x", "format": "raw"}}"#)), Ok(()));
    assert_eq!(backup(&format!(r#"{{{a}, "bitmap": "x", "backing": "/a.0"}}, {{{b}, "backing": "/b.0"}}"#)), Ok(()));
    assert_eq!(
        fault(&format!(r#"{{{a}, "backing": "/a.0"}}"#)),
        "disks[0].backing: is for what was written since the last backup: give `bitmap` as well, or leave it out"
    );
    assert_eq!(
        fault(&format!(r#"{{{a}, "bitmap": "x", "backing": "/a.0", "format": "raw"}}"#)),
        "disks[0].backing: is for qcow2 copies, a raw one names no backing file: set `format` to qcow2, or leave it out"
    );
    let relative = fault(&format!(r#"{{{a}, "bitmap": "x", "backing": "a.0"}}"#));
    assert!(relative.starts_with("disks[0].backing: must be an absolute path"), "{relative}");
    for (first, backing, message) in [
        (a.to_owned(), "/b.1", "/b.1 is the target of `b`: give the backup before this one"),
        (a.to_owned(), "/./a.1", "/./a.1 is the target of `a`: give the backup before this one"),
        (
            format!(r#"{a}, "bitmap": "x", "backing": "/a.0""#),
            "/a.0",
            "/a.0 is that of `a` already: give the backup of this disk",
        ),
    ] {
        let found = fault(&format!(r#"{{{first}}}, {{{b}, "backing": "{backing}"}}"#));
        assert_eq!(found, format!("disks[1].backing: {message}"));
    }
    let named = |name: &str| backup(&format!(r#"{{{a}, "bitmap": "{name}"}}"#)).map_err(|error| error.to_string());
    assert_eq!(named(&"x".repeat(1023)), Ok(()));
    assert_eq!(named(""), Err("disks[0].bitmap: must be 1 to 1023 bytes, not 0".into()));
    assert_eq!(named(&"x".repeat(1024)), Err("disks[0].bitmap: must be 1 to 1023 bytes, not 1024".into()));
}

#[test]
fn a_limit_is_changed_lifted_or_left_alone() {
    let limit = |text: &str| {
        let settings: JobSettings = serde_json::from_str(text).unwrap();
        settings.check().unwrap();
        settings.changed(Some(7))
    };
    assert_eq!((limit("{}"), limit(r#"{"limit": "1M"}"#)), (Some(7), Some(1 << 20)));
    for lifted in ["null", "0", r#""0""#, r#""none""#] {
        assert_eq!(limit(&format!(r#"{{"limit": {lifted}}}"#)), None, "{lifted}");
    }
    let settings = |text: &str| serde_json::from_str::<JobSettings>(text);
    assert!(settings(r#"{"limit": "nothing"}"#).unwrap_err().to_string().starts_with("`nothing` is not a size"));
    assert_eq!(settings(r#"{"limit": 1}"#).unwrap().check().unwrap_err().field, "limit");
    let lift = JobSettings { limit: Some(ByteSize(0)) };
    assert_eq!(settings(&serde_json::to_string(&lift).unwrap()).unwrap(), lift);
}

#[test]
fn a_state_says_what_can_be_done() {
    let job = |kind, state| Job {
        id: 3,
        kind,
        state,
        disks: vec![],
        done_bytes: 0,
        total_bytes: 0,
        bytes_per_second: 0,
        seconds_left: None,
        limit_bytes_per_second: None,
        error: None,
        started: 0,
        ended: None,
    };
    let complete = |kind, state| job(kind, state).may_complete().map_err(|error| error.to_string());
    assert_eq!(complete(JobKind::Mirror, JobState::Ready), Ok(()));
    assert_eq!(
        complete(JobKind::Mirror, JobState::Running),
        Err("job 3 is running, not ready: wait until everything is copied".into())
    );
    assert_eq!(
        complete(JobKind::Mirror, JobState::Completing),
        Err("job 3 is completing, not ready: wait until it is done".into())
    );
    assert_eq!(complete(JobKind::Mirror, JobState::Failed), Err("job 3 is failed, not ready: it has ended".into()));
    assert_eq!(
        complete(JobKind::Backup, JobState::Running),
        Err("job 3 cannot do this: a backup ends by itself, only a mirror, a commit or a pull is completed".into())
    );
    assert_eq!(complete(JobKind::Commit, JobState::Ready), Ok(()));
    assert!(complete(JobKind::Stream, JobState::Ready).unwrap_err().contains("a stream ends by itself"));
    for state in JobState::ALL {
        let job = job(JobKind::Mirror, state);
        assert_eq!(job.may_cancel().is_err(), state == JobState::Completing);
        assert_eq!(job.may_change().is_err(), state.has_ended());
    }
    assert_eq!(complete(JobKind::Pull, JobState::Ready), Ok(()));
    assert_eq!(
        complete(JobKind::Pull, JobState::Running),
        Err("job 3 is running, not ready: wait until it can be read".into())
    );
    assert_eq!(job(JobKind::Pull, JobState::Ready).may_cancel(), Ok(()));
    assert!(job(JobKind::Pull, JobState::Completing).may_cancel().is_err());
    let error = job(JobKind::Pull, JobState::Ready).may_change().unwrap_err();
    assert_eq!((error.status(), error.code()), (409, "unsupported"));
    let error = job(JobKind::Backup, JobState::Done).may_change().unwrap_err();
    assert_eq!(error.to_string(), "job 3 is done, not running: it has ended");
    assert_eq!((error.status(), error.code()), (409, "job-in-state"));
}
