//! Types of requests (`enum p9_msg_t`).

use crate::p9::dialect::Dialect;

/// Defines the enum, its table, its names and who speaks it together, so that none of them can miss one.
macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident = $number:literal, $name:literal, $spoken:ident;)*) => {
        /// A type of request; the discriminant is its number on the wire. The reply's is the next one.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Kind {
            $($(#[$doc])* $variant = $number,)*
        }

        impl Kind {
            /// Every type, in the order of the numbers.
            pub const ALL: &'static [Kind] = &[$(Kind::$variant,)*];

            /// The type of a number; `None` for one that these dialects do not have as a request.
            #[inline]
            pub const fn from_raw(number: u8) -> Option<Kind> {
                match number {
                    $($number => Some(Kind::$variant),)*
                    _ => None,
                }
            }

            /// The message's name as the specification spells it; for figures and logs.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Kind::$variant => $name,)*
                }
            }

            /// Who speaks it.
            #[inline]
            const fn spoken(self) -> Spoken {
                match self {
                    $(Kind::$variant => Spoken::$spoken,)*
                }
            }
        }
    };
}

/// Who speaks a type of request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Spoken {
    /// Whoever has not agreed on a dialect yet, too.
    Always,
    Both,
    L,
    U,
}

kinds! {
    /// Read the file system's figures.
    StatFs = 8, "Tstatfs", L;
    /// Open.
    Lopen = 12, "Tlopen", L;
    /// Make and open a file.
    Lcreate = 14, "Tlcreate", L;
    /// Make a symbolic link.
    Symlink = 16, "Tsymlink", L;
    /// Make a file of any type.
    Mknod = 18, "Tmknod", L;
    /// Rename what a fid stands for.
    Rename = 20, "Trename", L;
    /// Read a symbolic link.
    ReadLink = 22, "Treadlink", L;
    /// Read attributes.
    GetAttr = 24, "Tgetattr", L;
    /// Change attributes.
    SetAttr = 26, "Tsetattr", L;
    /// Have an extended attribute, or their list, as a fid to read.
    XattrWalk = 30, "Txattrwalk", L;
    /// Have an extended attribute as a fid to write.
    XattrCreate = 32, "Txattrcreate", L;
    /// Read a directory's entries.
    ReadDir = 40, "Treaddir", L;
    /// Make a file durable.
    Fsync = 50, "Tfsync", L;
    /// Set or drop a POSIX lock.
    Lock = 52, "Tlock", L;
    /// Ask for a lock in the way.
    GetLock = 54, "Tgetlock", L;
    /// Make a hard link.
    Link = 70, "Tlink", L;
    /// Make a directory.
    Mkdir = 72, "Tmkdir", L;
    /// Rename a name.
    RenameAt = 74, "Trenameat", L;
    /// Remove a name.
    UnlinkAt = 76, "Tunlinkat", L;
    /// Begin: message size and dialect.
    Version = 100, "Tversion", Always;
    /// Authenticate.
    Auth = 102, "Tauth", Both;
    /// Have the root of a tree as a fid.
    Attach = 104, "Tattach", Both;
    /// Cancel a request.
    Flush = 108, "Tflush", Both;
    /// Go along names, or make another fid of the same place.
    Walk = 110, "Twalk", Both;
    /// Open.
    Open = 112, "Topen", U;
    /// Make a file of any type and open it.
    Create = 114, "Tcreate", U;
    /// Read.
    Read = 116, "Tread", Both;
    /// Write.
    Write = 118, "Twrite", Both;
    /// Forget a fid.
    Clunk = 120, "Tclunk", Both;
    /// Remove what a fid stands for and forget the fid.
    Remove = 122, "Tremove", Both;
    /// Read attributes.
    Stat = 124, "Tstat", U;
    /// Change attributes and name.
    WriteStat = 126, "Twstat", U;
}

impl Kind {
    /// All numbers are below this: a table with so many rows has one for each.
    pub const NUMBERS: usize = 128;

    /// The number on the wire, as an index below [`NUMBERS`](Self::NUMBERS).
    #[inline]
    pub const fn number(self) -> usize {
        self as u8 as usize
    }

    /// Whether a client that agreed on this dialect may send it.
    #[inline]
    pub const fn is_spoken_in(self, dialect: Dialect) -> bool {
        match self.spoken() {
            Spoken::Always => true,
            Spoken::Both => !matches!(dialect, Dialect::Unknown),
            Spoken::L => matches!(dialect, Dialect::L),
            Spoken::U => matches!(dialect, Dialect::U),
        }
    }
}
