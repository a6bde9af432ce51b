//! Bodies of the fuzz targets: whole rings, from descriptors that the input owns to the answers in its memory, with a disk
//! in memory or a directory behind them.
//!
//! The targets in `fuzz/` call them, and so do the crate's own tests. Beside panics they look for requests that are lost or
//! answered twice: what a ring has in flight must be what it took and did not answer.

mod device_state;
mod directory;
mod disk;
mod guest;
mod moved;
mod p9;
mod p9_session;

pub use crate::nbd::fuzzing::nbd_handshake;
pub use device_state::device_state;
pub use directory::directory;
pub use disk::disk;
pub use p9::p9;
pub use p9_session::p9_session;

#[cfg(test)]
#[path = "../../../fuzz/seeds.rs"]
mod seeds;

#[cfg(test)]
mod tests {
    use super::guest::{OFFER, POKE, SERVE};
    use super::{device_state, directory, disk, nbd_handshake, p9, seeds};

    /// A descriptor, as a step: index, page and offset of the buffer, length, flags, next.
    fn descriptor(index: u8, at: u16, len: u16, flags: u8, next: u8) -> Vec<u8> {
        let ([a, b], [c, d]) = (at.to_le_bytes(), len.to_le_bytes());
        vec![super::guest::DESCRIPTOR, index, 0, a, b, 0, c, d, flags, next]
    }

    fn poke(at: u16, bytes: &[u8]) -> Vec<u8> {
        let [a, b] = at.to_le_bytes();
        [&[POKE, a, b, bytes.len() as u8], bytes].concat()
    }

    /// Header, data and status of a disk's request in three descriptors, offered and served.
    fn block(kind: u8, sector: u8, data: &[u8], readable: bool) -> Vec<u8> {
        let mut header = vec![0; 16];
        (header[0], header[8]) = (kind, sector);
        [
            poke(0x1000, &header),
            poke(0x2000, data),
            descriptor(0, 0x1000, 16, 1, 1),
            descriptor(
                1,
                0x2000,
                if data.is_empty() { 512 } else { data.len() as u16 },
                if readable { 1 } else { 3 },
                2,
            ),
            descriptor(2, 0x3000, 1, 2, 0),
            vec![OFFER, 0, 0, SERVE],
        ]
        .concat()
    }

    fn disk_seeds() -> Vec<(&'static str, Vec<u8>)> {
        let range = [0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0];
        let whole = |steps: &[Vec<u8>]| [&[0][..], &steps.concat()].concat();
        let late = |steps: &[Vec<u8>]| [&[1][..], &steps.concat()].concat();
        vec![
            ("read", whole(&[block(0, 1, &[], false)])),
            ("write", whole(&[poke(0x2000, &[7; 200]), block(1, 1, &[], true)])),
            ("flush", whole(&[block(4, 0, &[], true)])),
            ("id", whole(&[block(8, 0, &[], false)])),
            ("discard", whole(&[block(11, 0, &range, true)])),
            ("zeroes", whole(&[block(13, 0, &range, true)])),
            ("unknown", whole(&[block(99, 0, &[], false)])),
            ("beyond", whole(&[block(0, 255, &[], false)])),
            ("late", late(&[block(0, 1, &[], false), vec![OFFER, 0, 0, SERVE], vec![super::guest::COMPLETE, 0]])),
            (
                "memory",
                late(&[block(0, 1, &[], false), vec![super::guest::MEMORY, 1, SERVE, super::guest::COMPLETE, 0]]),
            ),
        ]
    }

    /// A FUSE request (linux/fuse.h) in two descriptors, offered and served.
    fn fuse(opcode: u8, node: u8, body: &[u8]) -> Vec<u8> {
        let mut request = vec![0; 40];
        (request[0], request[4], request[8], request[16]) = (40 + body.len() as u8, opcode, 9, node);
        request.extend(body);
        [
            poke(0x1000, &request),
            descriptor(0, 0x1000, request.len() as u16, 1, 1),
            descriptor(1, 0x2000, 0x1000, 2, 0),
            vec![OFFER, 0, 0, SERVE],
        ]
        .concat()
    }

    fn directory_seeds() -> Vec<(&'static str, Vec<u8>)> {
        let init = fuse(26, 0, &[&[7, 0, 0, 0, 38, 0, 0, 0][..], &[0; 56]].concat());
        let look_up = fuse(1, 1, b"file\0");
        let with = |more: &[u8]| [&[0][..], &init, more].concat();
        // struct fuse_read_in: handle, offset, size.
        let read = [&[1, 0, 0, 0, 0, 0, 0, 0][..], &[0; 8], &[0, 4, 0, 0], &[0; 20]].concat();
        vec![
            ("init", with(&[])),
            ("lookup", with(&look_up)),
            ("getattr", with(&fuse(3, 1, &[0; 16]))),
            (
                "open_read",
                with(&[look_up.clone(), fuse(14, 2, &[0; 8]), fuse(15, 2, &read), fuse(18, 2, &[0; 24])].concat()),
            ),
            ("opendir_readdir", with(&[fuse(27, 1, &[0; 8]), fuse(28, 1, &read), fuse(44, 1, &read)].concat())),
            ("statfs", with(&fuse(17, 1, &[]))),
            ("xattr", with(&fuse(22, 1, &[&[64, 0, 0, 0, 0, 0, 0, 0][..], b"user.x\0"].concat()))),
            ("create", with(&fuse(35, 1, &[&[0; 16][..], b"new\0"].concat()))),
            ("forget", with(&[look_up, fuse(2, 2, &[1, 0, 0, 0, 0, 0, 0, 0])].concat())),
            ("destroy", with(&fuse(38, 0, &[]))),
        ]
    }

    /// A 9P message (the "9P2000.L" specification) in two descriptors, offered and served.
    fn message(kind: u8, tag: u8, fields: &[&[u8]]) -> Vec<u8> {
        let body = fields.concat();
        let request = [&[7 + body.len() as u8, 0, 0, 0, kind, tag, 0][..], &body].concat();
        [
            poke(0x1000, &request),
            descriptor(0, 0x1000, request.len() as u16, 1, 1),
            descriptor(1, 0x2000, 0x1000, 2, 0),
            vec![OFFER, 0, 0, SERVE],
        ]
        .concat()
    }

    fn p9_seeds() -> Vec<(&'static str, Vec<u8>)> {
        let number = |number: u32| number.to_le_bytes();
        let string = |text: &str| [&[text.len() as u8, 0][..], text.as_bytes()].concat();
        let version = message(100, 0xff, &[&number(8192), &string("9P2000.L")]);
        let attach = message(104, 1, &[&number(1), &number(u32::MAX), &string("u"), &string(""), &number(0)]);
        let walk = |name: &str| message(110, 2, &[&number(1), &number(2), &[1, 0], &string(name)]);
        let with = |options: u8, more: &[Vec<u8>]| [&[options][..], &version, &attach, &more.concat()].concat();
        let read = message(116, 4, &[&number(2), &[0; 8], &number(1000)]);
        let open = message(12, 3, &[&number(2), &number(0)]);
        let lock = message(52, 5, &[&number(2), &[0], &number(1), &[0; 16], &number(7), &string("c")]);
        vec![
            ("version", [&[0][..], &version].concat()),
            ("attach", with(0, &[])),
            ("walk_getattr", with(0, &[walk("file"), message(24, 3, &[&number(2), &[0xff; 8]])])),
            ("open_read_clunk", with(0, &[walk("file"), open.clone(), read.clone(), message(120, 6, &[&number(2)])])),
            (
                "readdir",
                with(0, &[walk("directory"), open.clone(), message(40, 4, &[&number(2), &[0; 8], &number(1000)])]),
            ),
            ("readlink", with(0, &[walk("link"), message(22, 3, &[&number(2)])])),
            ("statfs", with(0, &[message(8, 3, &[&number(1)])])),
            (
                "create",
                with(0, &[message(14, 3, &[&number(1), &string("new"), &number(2), &number(0o644), &number(0)])]),
            ),
            ("xattr", with(0, &[message(30, 3, &[&number(1), &number(3), &string("user.x")])])),
            ("lock", with(0, &[walk("file"), open, lock, vec![super::guest::COMPLETE, 0]])),
            ("flush", with(4, &[read, message(108, 7, &[&[4, 0]]), vec![super::guest::COMPLETE, 0]])),
        ]
    }

    #[test]
    fn p9_seeds_hold() {
        let mut answered = 0;
        seeds::hold("p9_ring", &p9_seeds(), |seed| answered += p9(seed));
        assert!(answered >= 36, "only {answered} requests were answered");
    }

    #[test]
    fn disk_seeds_hold() {
        let mut answered = 0;
        seeds::hold("disk_ring", &disk_seeds(), |seed| answered += disk(seed));
        assert!(answered >= 9, "only {answered} requests were answered");
    }

    #[test]
    fn directory_seeds_hold() {
        let mut answered = 0;
        seeds::hold("directory_ring", &directory_seeds(), |seed| answered += directory(seed));
        assert!(answered >= 18, "only {answered} requests were answered");
    }

    /// The same requests, and the pages that they change.
    #[test]
    fn what_rings_write_is_marked_for_a_guest_that_is_moved() {
        let mut answered = 0;
        for (seeds, play) in
            [(disk_seeds(), disk as fn(&[u8]) -> usize), (directory_seeds(), directory), (p9_seeds(), p9)]
        {
            for (_, mut seed) in seeds {
                seed[0] |= super::guest::IS_MOVED;
                answered += play(&seed);
            }
        }
        assert!(answered >= 63, "only {answered} requests were answered");
    }

    /// Three requests that move a name and could write 600 KiB each: marks for so much take their time, in which others wait.
    #[test]
    fn a_turn_ends_at_what_is_to_be_marked() {
        let mut steps = poke(0x1000, &{
            let mut get_id = [0; 16];
            get_id[0] = 8;
            get_id
        });
        for head in 0..3 {
            steps.extend(descriptor(head, 0x1000, 16, 1, 3));
        }
        for index in 3..15 {
            steps.extend(descriptor(index, 0x4000, 0xc000, 3, index + 1));
        }
        steps.extend(descriptor(15, 0x3000, 1, 2, 0));
        (0..3).for_each(|head| steps.extend([OFFER, head, 0]));
        steps.push(SERVE);
        let answered = |options: u8| disk(&[&[options][..], &steps].concat());
        assert_eq!(answered(0), 3);
        assert_eq!(answered(super::guest::IS_MOVED), 2);
    }

    /// What others send is read as far as it makes sense, and what makes none leaves nothing.
    #[test]
    fn states_of_other_hosts_hold() {
        let mut known = Vec::new();
        seeds::hold("device_state", &super::device_state::seeds(), |seed| known.push(device_state(seed)));
        known.sort_unstable();
        assert_eq!(known, [1, 6, 6, 6], "nodes and open files of the seeds");
        let mut taken = 0;
        let made = super::device_state::seeds();
        seeds::noise(3000, 40, |input| {
            let Some((&[which, at, options], rest)) = input.split_first_chunk() else { return };
            let (_, seed) = &made[usize::from(which) % made.len()];
            let mut state = seed.clone();
            state[0] = options;
            for (at, byte) in (usize::from(at)..).step_by(7).zip(rest.iter().take(usize::from(which % 3) + 1)) {
                let at = 1 + at % (state.len() - 1);
                state[at] = *byte;
            }
            taken += usize::from(device_state(&state) > 0);
        });
        assert!(taken >= 100, "only {taken} states were taken");
    }

    fn nbd_seeds() -> Vec<(&'static str, Vec<u8>)> {
        // Numbers of options: "Option types" of the NBD protocol.
        let option = |number: u8, data: &[u8]| [&[number, data.len() as u8], data].concat();
        let (tls, structured, list) = (option(5, &[]), option(8, &[]), option(3, &[]));
        let go = option(7, &[0, 0, 0, 0, 0, 0]);
        let context = option(10, &[&[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 15][..], b"base:allocation"].concat());
        let of = |begin: u8, options: &[&Vec<u8>]| {
            [&[begin][..], &options.iter().flat_map(|it| it.iter()).copied().collect::<Vec<_>>()].concat()
        };
        vec![
            ("plain", of(0, &[&list, &structured, &context, &tls, &go])),
            ("tls", of(1, &[&tls, &structured, &context, &list, &go])),
            ("tls_first", of(3, &[&list, &structured, &context, &go, &tls, &go])),
            ("tls_twice", of(1, &[&tls, &tls, &option(5, b"data"), &go])),
            ("tls_with_data", of(1, &[&option(5, b"data"), &tls, &option(2, &[])])),
            ("tls_or_leave", of(1, &[&structured, &option(2, &[])])),
            ("tls_by_name", of(1, &[&option(1, b"")])),
            ("by_name", of(2, &[&option(6, &[0, 0, 0, 0, 0, 1, 0, 1]), &option(1, b"")])),
        ]
    }

    #[test]
    fn nbd_seeds_hold() {
        let mut answered = 0;
        seeds::hold("nbd_handshake", &nbd_seeds(), |seed| answered += nbd_handshake(seed));
        assert!(answered >= 30, "only {answered} options were answered");
    }

    /// Numbers that options have, more often than noise has them.
    #[test]
    fn options_in_any_order_hold() {
        let mut answered = 0;
        seeds::noise(20_000, 200, |mut input| {
            let mut at = 1;
            while at + 1 < input.len() {
                (input[at], input[at + 1]) = (input[at] % 13, [0, 0, 6, input[at + 1]][usize::from(input[at] % 4)]);
                at += 2 + usize::from(input[at + 1]);
            }
            answered += nbd_handshake(&input);
        });
        assert!(answered >= 20_000, "only {answered} options were answered");
    }

    #[test]
    fn noise_holds() {
        let mut answered = 0;
        seeds::noise(3000, 600, |input| answered += disk(&input) + directory(&input) + p9(&input));
        assert!(answered >= 1000, "only {answered} requests were answered");
    }
}
