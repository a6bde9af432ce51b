//! The text that lists the extents of a VMDK image.
//!
//! A line that is not understood may be an extent, whose loss would shift all that follows: so it is an error.

/// Most extents: 2 GiB each, of a disk of 8 TiB.
const EXTENTS_MAX: usize = 4096;
/// Sectors of any disk.
const SECTORS_MAX: u64 = super::SIZE_MAX / 512;
/// `parentCID` of a disk without a parent.
const NO_PARENT: u32 = u32::MAX;

/// What an extent is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Nothing.
    Zeroes,
    /// Sectors of a file, from a byte on.
    Flat(u64),
    /// A file with tables of its own.
    Sparse,
}

/// A line of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// Of 512 bytes.
    pub(super) sectors: u64,
    pub(super) kind: Kind,
    /// Relative to the descriptor's directory; empty where there is none.
    pub(super) name: String,
}

/// Most characters of a line that a message shows.
const SHOWN: usize = 60;

/// The text, of bytes that may have anything behind its end: where it becomes shorter QEMU leaves the rest of what was there, which is less than
/// an extent.
///
/// # Errors
/// What is wrong, and what helps.
pub(super) fn text(mut bytes: Vec<u8>) -> Result<String, String> {
    if let Some(end) = bytes.iter().position(|byte| *byte == 0) {
        let behind = bytes[end..].split(|byte| matches!(byte, 0 | b'\n'));
        if behind.map(String::from_utf8_lossy).any(|line| is_extent(&line)) {
            return Err("has an extent behind a zero byte in its descriptor: it is damaged".to_owned());
        }
        bytes.truncate(end);
    }
    String::from_utf8(bytes).map_err(|_| "its descriptor is not in UTF-8: save it so".to_owned())
}

/// Reads the extents of a disk without a parent, in their order.
///
/// # Errors
/// What is wrong, and what helps.
pub(super) fn extents(text: &str) -> Result<Vec<Line>, String> {
    let mut lines = Vec::new();
    let mut is_typed = false;
    let text = text.trim_start_matches('\u{feff}');
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        let shown = || line.chars().take(SHOWN).collect::<String>();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if is_extent(line) {
            lines.push(
                extent(line)
                    .ok_or_else(|| format!("line {number} of its descriptor is no extent: {:?}", shown()))??,
            );
            if lines.len() > EXTENTS_MAX {
                return Err(format!("its descriptor has more than {EXTENTS_MAX} extents"));
            }
            continue;
        }
        let Some((key, value)) = line.split_once('=') else {
            return Err(format!("line {number} of its descriptor is not understood: {:?}", shown()));
        };
        let (key, value) = (key.trim(), value.trim().trim_matches('"'));
        is_typed |= key.eq_ignore_ascii_case("createType");
        if key.eq_ignore_ascii_case("parentCID") && u32::from_str_radix(value, 16) != Ok(NO_PARENT) {
            return Err("has a parent (parentCID), as a snapshot does: consolidate it with VMware's tools first, \
                 or use `qemu-img convert`"
                .to_owned());
        }
    }
    if !is_typed || lines.is_empty() {
        return Err("its descriptor lists no extents or has no createType: it was cut off, or is none".to_owned());
    }
    Ok(lines)
}

fn is_extent(line: &str) -> bool {
    line.split_whitespace().next().is_some_and(|access| matches!(access, "RW" | "RDONLY" | "NOACCESS"))
}

/// `ACCESS SECTORS TYPE "NAME" OFFSET`, without the last two where there is no file. None where it is not that; an error where it
/// is, and cannot be read.
fn extent(line: &str) -> Option<Result<Line, String>> {
    let mut quoted = line.splitn(3, '"');
    let mut words = quoted.next()?.split_whitespace();
    let (access, sectors, kind) = (words.next()?, words.next()?.parse().ok()?, words.next()?);
    let name = quoted.next();
    let mut rest = quoted.next().unwrap_or_default().split_whitespace();
    let offset: u64 = rest.next().map_or(Some(0), |offset| offset.parse().ok())?;
    if words.next().is_some() || sectors == 0 || sectors > SECTORS_MAX || offset > SECTORS_MAX {
        return None;
    }
    let kind = match kind {
        "ZERO" => Kind::Zeroes,
        _ if access == "NOACCESS" => return Some(Err("has an extent without access (NOACCESS)".to_owned())),
        "FLAT" | "VMFS" => Kind::Flat(offset * 512),
        "SPARSE" => Kind::Sparse,
        "VMFSSPARSE" | "SESPARSE" => return Some(Err(super::vmdk::OF_SNAPSHOTS.to_owned())),
        other => return Some(Err(format!("has an extent of type {other:?}, which is unknown, or read by ESXi alone"))),
    };
    let name = match kind {
        Kind::Zeroes => "",
        _ => name.filter(|name| !name.is_empty() && !name.contains(char::is_control))?,
    };
    Some(Ok(Line { sectors, kind, name: name.to_owned() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_read_in_their_order() {
        let text = "# Disk DescriptorFile\nversion=1\nCID=1\nparentCID=ffffffff\ncreateType=\"custom\"\r\n\n\
             RW 4192256 SPARSE \"a b-s001.vmdk\"\nRDONLY 8 FLAT \"f\" 16\nRW 9 VMFS \"g\"\nNOACCESS 3 ZERO \n\
             ddb.adapterType = \"ide\"\n";
        let line = |sectors, kind, name: &str| Line { sectors, kind, name: name.to_owned() };
        let expected = [
            line(4_192_256, Kind::Sparse, "a b-s001.vmdk"),
            line(8, Kind::Flat(8192), "f"),
            line(9, Kind::Flat(0), "g"),
            line(3, Kind::Zeroes, ""),
        ];
        assert_eq!(extents(text).unwrap(), expected);
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let refused = |line: &str| extents(&format!("createType=\"x\"\nRW 8 ZERO\n{line}\n")).unwrap_err();
        for line in [
            "RW",
            "RW x SPARSE \"a\"",
            "RW 0 SPARSE \"a\"",
            "RW 8 SPARSE a",
            "RW 8 SPARSE \"\"",
            "RW 8 SPARSE \"a\u{1b}[31m\"",
            "RW 8 FLAT \"a\" -1",
            "RW 8 FLAT \"a\" 99999999999999999",
            "RW 99999999999999999999 ZERO",
            "RW 999999999999999 ZERO",
        ] {
            assert_eq!(refused(line), format!("line 3 of its descriptor is no extent: {line:?}"));
        }
        assert_eq!(refused("RX 8 ZERO"), "line 3 of its descriptor is not understood: \"RX 8 ZERO\"");
        for (line, about) in [
            ("parentCID=12345678", "has a parent (parentCID)"),
            ("parentcid = \"0\"", "has a parent (parentCID)"),
            ("parentCID=unknown", "has a parent (parentCID)"),
            ("RW 8 VMFSRDM \"a\"", "has an extent of type \"VMFSRDM\""),
            ("RW 8 SESPARSE \"a\"", "is an extent of a snapshot"),
            ("NOACCESS 8 FLAT \"a\"", "has an extent without access"),
        ] {
            assert!(refused(line).starts_with(about), "{}", refused(line));
        }
        assert_eq!(text(b"RW 8 ZERO\n\0ge = \"1\"\n\xff".to_vec()).as_deref(), Ok("RW 8 ZERO\n"));
        for bytes in [&b"RW 8 ZERO\n\0\0\0\nRW 8 ZERO\n"[..], b"RW 8 ZERO\n\0\xff\0RDONLY 8 \n"] {
            assert!(text(bytes.to_vec()).unwrap_err().contains("behind a zero byte"));
        }
        assert!(text(b"RW 8 \xff".to_vec()).unwrap_err().contains("UTF-8"));
        assert!(extents("RW 8 ZERO\n").is_err() && extents("createType=\"x\"\n").is_err());
        assert!(extents(&format!("createType=\"x\"\n{}", "RW 8 ZERO\n".repeat(4097))).is_err());
    }
}
